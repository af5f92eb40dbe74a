"""`stec WORDS`, with the labels of every batch that is trained on written to the file $SEEN, a line per step.

With $LESS_MEMORY, the images fit into the memory of all processes but that one.
"""

import json
import os

from stec import cli
from stec.data import loading
from stec.engine import Loop

train = Loop.train


def watched(self, batch):
    with open(f"{os.environ['SEEN']}-{self.fabric.global_rank}", "a") as file:
        file.write(json.dumps([self.epoch, self.step, batch.labels.tolist()]) + "\n")
    train(self, batch)


Loop.train = watched
if "LESS_MEMORY" in os.environ:
    fits = os.environ["LESS_MEMORY"] != os.environ.get("LOCAL_RANK", "0")
    loading.is_resident = lambda choice, needed, device: fits and choice != "never"
if __name__ == "__main__":
    cli.main()
