"""python -m ckptconv"""

from .cli import main

main()
