"""Package metadata; tools are configured in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="tfbig",
    version="0.1.0",
    description="Trains Keras CNNs on gigapixel images strip by strip, exactly",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["tfbig", "tfbig.*"]),
    py_modules=["tfbig_command"],
    package_data={"tfbig.recipes": ["*.yaml"], "tfbig.results": ["page/*"]},
    entry_points={"console_scripts": ["tfbig=tfbig_command:main"]},
    python_requires=">=3.11,<3.14",
    install_requires=[
        "tensorflow>=2.21,<2.22",
        "keras>=3.15,<3.17",
        "numpy>=2",
        "tifffile",
        "imagecodecs",
        "openslide-python",
        "openslide-bin",
        "h5py",
        "pillow",
        "scikit-image",
        "scikit-learn",
        "scipy",
        "shapely>=2.1",
        "rasterio>=1.4",
        "tqdm",
        "matplotlib",
        "jinja2",
        "PyYAML",
        "safetensors",
    ],
    extras_require={
        "zarr": ["zarr>=3"],
        "volumes": ["nibabel>=5", "pynrrd>=1", "pydicom>=3"],
        "log": ["tensorboard>=2.20"],
        "dask": ["distributed"],
        "hub": ["huggingface_hub"],
        "scenes": ["geopandas>=1"],
        "gpu": ["tensorflow[and-cuda]>=2.21,<2.22"],
        "docs": [
            "mkdocs>=1.6,<2",
            "mkdocs-material>=9.6",
            "mkdocstrings[python]>=1.0",
            *("jupytext", "nbclient", "ipykernel", "nbconvert", "psutil"),
        ],
        "dev": [
            *("pytest", "pytest-xdist", "hypothesis", "ruff", "mypy", "types-PyYAML", "pre-commit"),
            "selenium",  # opens reports in a browser
            *("nibabel>=5", "pynrrd>=1", "pydicom>=3"),
            *("zarr>=3", "ome-zarr-models"),  # the second validates the OME-Zarr that is written
            "tensorboard>=2.20",
            "distributed",
            "geopandas>=1",
            "rio-cogeo",  # validates cloud-optimised GeoTIFF
            "lifelines",  # what tests of survival analysis compare with
            "huggingface_hub",
        ],
        "torch": ["torchvision", "timm"],  # networks whose weights are read, for tests
        "keras-hub": ["keras-hub"],  # networks that are compared with plain Keras, for tests
    },
)
