"""Tasks of `--task`: classifiers of bags and images, PatchGD, segmentation."""
