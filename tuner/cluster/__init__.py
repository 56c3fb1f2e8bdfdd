"""Many problems on many devices, by `dask.distributed`: the extra `[cluster]`. Nothing else imports it."""
