"""`stec WORDS`, with the labels of every batch that is trained on written to the file $SEEN, a line per step."""

import json
import os

from stec import cli
from stec.engine import Loop

train = Loop.train


def watched(self, batch):
    with open(f"{os.environ['SEEN']}-{self.fabric.global_rank}", "a") as file:
        file.write(json.dumps([self.epoch, self.step, batch.labels.tolist()]) + "\n")
    train(self, batch)


Loop.train = watched
if __name__ == "__main__":
    cli.main()
