"""python -m osscl"""

from osscl.cli import main

if __name__ == "__main__":
    main()
