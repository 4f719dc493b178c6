"""Where images wait between sweeps: pooled host memory, a scratch file, the device."""
