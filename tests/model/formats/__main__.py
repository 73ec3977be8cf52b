"""Write the files of this version."""

from tests.model.formats import main

main()
