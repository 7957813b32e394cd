"""On the path of the processes that are tortured: the small network in place of the pretrained encoder."""

import os

if os.environ.get("OSSCL_TORTURE") == "1":
    from torture.encoder import install

    install()
