"""Search spaces (`spaces/*.toml`) and the tuned records that ship with the package (`tuned/`)."""
