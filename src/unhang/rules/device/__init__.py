"""Rules on devices and the node they sit in: hardware, drivers, buses, NVLink fabric and shared memory."""
