"""Settings of every command, declared as flags and parsed before anything heavy is imported."""
