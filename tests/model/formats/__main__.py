"""Write the folder of this version."""

from tests.model.formats import main

main()
