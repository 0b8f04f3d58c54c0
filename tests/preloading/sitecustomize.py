"""Imports the package in pyspark's daemons, before they fork the processes that plan, read and write.

Python imports a module of this name by itself where it is on the path: see `spark` in `fix_spark.py`.
"""

import sys
from importlib import import_module

if "pyspark.daemon" in sys.orig_argv:
    for name in ("pyspark_pulsar_native", "pyspark_tubemq", "pyspark_nsq"):
        import_module(name)
