"""What to run: a model of the device, what was learned of devices that were measured, and the shortlist of both."""
