"""`python -m codedreduce`."""

from codedreduce.cli import main

if __name__ == "__main__":
    main()
