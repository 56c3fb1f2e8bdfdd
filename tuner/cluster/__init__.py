"""Tuning of many problems on many devices, by `dask.distributed` of the extra `[cluster]`."""
