"""What `--task` trains: classifiers of bags and images, PatchGD, segmentation."""
