"""A sweep's processes: the driver, its server and workers, and the devices that they take."""
