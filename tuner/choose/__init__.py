"""Choice of configs: a model of the device, rankers fitted to measured devices, and the shortlist of both."""
