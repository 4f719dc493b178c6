"""What `train.py --task` runs, one module a task: its flags, and `train(settings)`."""
