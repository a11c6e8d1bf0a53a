"""An app whose second import leaves a fork of its process behind, and ends the process itself."""

import os
import time

from tenure import Tenure

app = Tenure()

with open(os.environ["FLEET_HANDLER_LOG"] + ".imports", "a") as imports:
    imports.write("x")
    imports.flush()
    nth = imports.tell()

if nth == 2:
    if os.fork() == 0:
        time.sleep(600)
    os._exit(3)
