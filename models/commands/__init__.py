"""What the console command `tfbig` runs, one module a command: its flags, and `run(settings)`, the exit code."""
