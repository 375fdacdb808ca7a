"""The list of packages; everything else about the distribution is in pyproject.toml.

The root folders ``methods/`` and ``tasks/`` install inside the package ``icrbench``. The table
``[tool.setuptools.packages.find]`` cannot prefix the names it finds, so the list is made here: a new
subpackage (a folder with an ``__init__.py``) in any of the three is found without editing this file.
"""

from setuptools import find_packages, setup

FOLDERS = {"icrbench": "icrbench", "icrbench.methods": "methods", "icrbench.tasks": "tasks"}

setup(
    packages=[
        name
        for package, folder in FOLDERS.items()
        for name in (package, *(f"{package}.{sub}" for sub in find_packages(folder)))
    ],
    package_dir=FOLDERS,
)
