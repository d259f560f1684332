"""Program of each process of `test_supervised.py`: FOLDER. verl's SFT trainer as its own command runs it.

That command cannot begin on a CPU: it names the device twice when its processes join.
"""

import sys
from pathlib import Path

import torch.distributed as dist
from hydra import compose, initialize_config_dir

from repairgym.bridges.verl.supervised import CONFIG_NAME


def main(folder: Path) -> None:
    from verl.trainer.sft_trainer import SFTTrainer

    dist.init_process_group("cpu:gloo")
    with initialize_config_dir(str(folder), version_base=None):
        SFTTrainer(compose(CONFIG_NAME)).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
