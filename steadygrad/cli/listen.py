"""Write predictions of a run on timit as sound files, and score their quality.

steadygrad listen runs/lstm-timit-0                           scores, and three sentences in RUN/listen
steadygrad listen RUN -o sounds --files 10                    ten sentences, in another folder

Each sentence has two files, original.wav and predicted.wav. predicted.wav is rebuilt from the magnitudes that the
network predicts, frame by frame, and the phases of the original. SegSNR in dB, STOI (0 to 1) and PESQ (1 to 4.5) are
means over all test sentences. mse in dB² is the mean over all frames. STOI and PESQ need
pip install steadygrad[speech].
"""

import argparse
from pathlib import Path

from steadygrad.cli import known
from steadygrad.cli.common import add_threads, note, say, set_threads, show_table
from steadygrad.files import json_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `steadygrad listen` to its parser."""
    parser.add_argument("run_directory", metavar="RUN", help="a run's directory")
    parser.add_argument("-o", "--output", metavar="DIR", help="folder of the sound files (default: RUN/listen)")
    parser.add_argument("--files", type=int, default=3, metavar="N", help="number of sentences to write (default 3)")
    parser.add_argument("--weights", choices=("best", "last"), default="best")
    parser.add_argument("--json", action="store_true", help="print the scores of every sentence as one JSON object")
    add_threads(parser)


def run(options: argparse.Namespace) -> int:
    """Write predicted TIMIT sentences of a run as WAV files, print quality scores of the test sentences, return 0."""
    known.settings(options, {})
    from steadygrad.experiments.listen import listen
    from steadygrad.tasks.speech_quality import missing_scores
    from steadygrad.training import RunDirectory, ShowProgress

    set_threads(options)
    if options.files < 0:
        raise ValueError(f"--files expects at least 0; got {options.files}")
    directory = RunDirectory(options.run_directory)
    out = Path(options.output or directory.file("listen"))
    show = ShowProgress("listen")
    try:
        found = listen(
            directory,
            out,
            files=options.files,
            weights=options.weights,
            progress=lambda done, total: show.tested("of sentences", done, total),
        )
    finally:
        show.close()
    if missing := missing_scores():
        note(f"without {' and '.join(missing)}: pip install steadygrad[speech]")
    if options.json:
        print(json_text(found))
        return 0
    sentences = found.pop("sentences")
    written = sentences[: options.files]
    rows = [*written, {"sentence": f"all {len(sentences)}", **found}]
    columns = list(found)
    cells = [[row["sentence"], *(f"{row[key]:.4g}" if key in row else "" for key in columns)] for row in rows]
    settings = directory.settings()
    show_table(f"{settings.layer['name']} on timit, test sentences, {options.weights} weights", ["", *columns], cells)
    if written:
        say(f"original.wav and predicted.wav of {len(written)} in {out}")
    return 0
