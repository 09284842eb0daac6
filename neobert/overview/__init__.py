"""What a folder of runs says about its runs, read from files alone: no scheduler is asked, nothing is written."""
