"""What `crossover-bench predict` takes where nothing is said; apart from the command so that `--help` is quick."""

from pathlib import Path

CALIBRATION = Path("results/calibration/measured.json")
STRATEGIES = ("fixed-buckets", "unfused", "tensor-fusion", "mg-wfbp", "unfused+at-pre-hook")
BATCH_SIZE = 32  # per worker, whatever their number
ALPHA = "20us"  # of a ring step among hosts with one device each: the default cluster
HOSTS, RATES = "2,4,8,16,64,256,1024", "1gbit,10gbit,25gbit,100gbit"
CALIBRATED_HOSTS, CALIBRATED_RATES = "2,4,8", "200mbit,1gbit"
