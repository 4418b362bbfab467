"""What a program says of its own progress: steps, bars, and the work that one rank does alone."""

from __future__ import annotations

import re

from unhang.read.logs.patterns import Pattern

# What only one rank does, as a rule: others wait for it in a barrier.
_PREPARING = (
    r"[Tt]okeniz\w*|Map\b|Filter\b|Grouping texts|Packing|Flattening|Concatenating|Converting|Generating \w+ (?:split|examples)|Scanning|"
    r"Caching|Building (?:index|dataset|cache)\w*|Indexing|Extracting|Downloading|Preprocess\w*|Processing (?:data|examples|files)|"
    r"Creating (?:cache|features|json)\w*|Loading (?:data|dataset|annotations)\w*|Merging|Computing (?:features|statistics)|Shuffling|Saving the dataset|"
    r"Encoding|Casting|Dropping|Adding EOS|Resolving data files|Fetching \d+ files|Clustering|Reading|Parsing|Truncating|Deduplicating|"
    r"[Cc]aching (?:latents|images|labels|text)[\w ]*|[Pp]recomput\w+"
)
_BAR = r"(?P<percent>\d{1,3})%\s?\|[^|]{0,120}\| *(?P<done>[\d.]+[kMG]?)/(?P<total>[\d.]+[kMG]?) \[(?P<elapsed>[\d:]+)<(?P<left>[\d:?]+)"

PATTERNS = (
    Pattern(
        "work.preparing",
        rf"(?P<what>{_PREPARING})[^%|\n]{{0,80}}?:? +{_BAR}",
        ("%|",),
        (
            "Running tokenizer on dataset (num_proc=64):  69%|######9   | 34170/49703 [10:01<02:06, 122.64 examples/s]",
            "Map (num_proc=14):  70%|###########   | 652383/930514 [6:39:53<4:31:33, 17.07 examples/s][E ProcessGroupGloo.cpp:138]",
            "Generating train split:  12%|#2        | 120/1000 [01:00<07:20, 2.0 examples/s]",
        ),
        ("Epoch 2/30:   3%|2  | 6/8563 [00:10<10:00, 1.2it/s]",),
        is_background=True,
    ),
    Pattern(
        "work.preparing",
        r"(?P<what>(?:[Bb]uild|[Cc]reat|[Pp]repar|[Gg]enerat|[Cc]omput|[Cc]ach|[Tt]okeniz|[Dd]ownload|[Pp]reprocess|[Cc]onvert|[Ll]oad)ing\b[^|%\n]{0,80}) "
        r"(?:only )?(?:on|by|in) (?:the )?(?:global |local )?(?:rank ?0|rank zero|main process|master(?: process| rank)?)\b",
        ("on rank", "by rank", "in rank", "rank zero", "main process", "master"),
        (
            "> WARNING: could not find index map file /data/x_indexmap.npy, building the indices on rank 0 ...",
            "[INFO] Tokenizing the data set only on the main process, others wait",
        ),
        ("INFO loading checkpoint on rank 3", "the main process is 1234"),
        is_background=True,
    ),
    # Its unit tells that it counts no steps of training.
    Pattern(
        "work.preparing",
        rf"{_BAR}, *[\d.]+ ?(?:examples|ex|files?|lines?|docs?|documents|rows|records|sentences|pages)/s",
        ("/s]", "/s,"),
        (
            " 38%|###8      | 32066/85249 [32:12<53:25, 16.59 lines/s]",
            "12%|#2 | 120/1000 [01:00<07:20, 2.0 examples/s]",
        ),
        ("12%|#2  | 120/1000 [01:00<07:20, 2.0it/s]", "1.2 steps/s]"),
        is_background=True,
    ),
    Pattern(
        "progress.bar",
        _BAR,
        ("%|",),
        (
            "  3%|3         | 270/9847 [05:50<3:17:42,  1.24s/it]Invalidate trace cache @ step 1",
            " 94%|#########4| 837/888 [9:42:50<34:08, 40.17s/it]",
        ),
        ("12%|#| x",),
        is_background=True,
    ),
    Pattern(
        "progress.bar",
        r"(?P<percent>\d{1,3})%\s?\|[^|]{0,120}\| *(?P<done>\d+)/(?P<total>\d+)\s*$",
        ("%|",),
        ("Steps: 100%|##########| 6928/6928",),
        is_background=True,
    ),
    Pattern(
        "progress.unbounded",
        r"(?:[Bb]atch|BATCH|[Ss]tep|[Ii]ter\w*)[ :=]*(?P<done>\d+) ?/ ?(?:inf|\?|None|unknown|-1)(?!\w)|\b(?P<done_>\d+)it \[(?P<elapsed>[\d:]+), ",
        ("/inf", "/?", "/None", "/unknown", "/-1", "it ["),
        ("2024-08-18 10:46:16 INFO RANK 0: BATCH 80/inf", "step 12/? loss 0.3", "1042it [12:10,  1.43it/s]"),
        ("100/100 it [", "https://host/?q=1"),
        is_background=True,
    ),
    Pattern(
        "progress.step",
        r"\{'(?:train_)?loss': |\b(?:global_)?[Ss]tep[ :=#]+(?P<step>\d+)\b.*\b(?:loss|lr|ce|fer|tokens?|it/s)\b"
        r"|\b(?:iter(?:ation)?)[ :=]+(?P<step_>\d+)\b.*loss|\b[Tt]rain(?:ing)? [Ee]poch[ :#]+\d+.*\b[Ll]oss\b|\b[Ee]poch\b(?!\(val).{0,200}\b[Ll]oss\b",
        ("'loss': ", "'train_loss': ", "tep", "iter", "poch"),
        (
            "{'loss': 6.1660, 'learning_rate': 0.7142394423407211519, 'epoch': 0.03}",
            "ep 272 train, step 177, ce 0.108, ctc_4 1.457, mem_usage:cuda:2 7.3GB",
            " iteration      120/ 5000 | elapsed time per iteration (ms): 1013.1 | learning rate: 1.500E-04 | lm loss: 7.1E+00",
            "Train Epoch: 3 [100/1000 (10%)]\tLoss: 0.231",
        ),
        ("Epoch 3 begins", "stepping down"),
        is_background=True,
    ),
    Pattern(
        "work.saving",
        r"[Ss]aving\b.{0,40}\b(?i:checkpoint|model|state|weights|adapter|optimizer|pipeline|snapshot)|[Ss]aving current state|"
        r"[Cc]heckpoint \S* ?is about to be saved|[Ww]riting checkpoint|[Ss]tart(?:ing)? (?:to )?sav(?:e|ing)|[Mm]odel weights saved in|"
        r"[Rr]etrieving (?:full )?(?:model |optim\w* )?state ?dict|Getting full (?:model|optim\w*) state ?dict|[Uu]ploading (?:checkpoint|model)|"
        r"[Cc]onsolidat\w+ .{0,30}(?:weights|checkpoint|state|safetensors|shards)|going to be split in \d+ checkpoint shards|"
        r"[Pp]reparing to save|[Aa]bout to save|[Ss]ave (?:model|checkpoint|state|weights) (?:checkpoint )?(?:to|at|in)\b|[Dd]umping (?:model|checkpoint)|"
        r"[Ww]riting (?:model|weights|safetensors)|[Ee]xporting (?:model|checkpoint|weights)|"
        r"[Mm]erging (?:lora|adapter|weights|model)|save_pretrained|save_16bit_model|Configuration saved in",
        (
            "aving",
            "is about to be saved",
            "riting checkpoint",
            "to save",
            "weights saved in",
            "etrieving ",
            "Getting full",
            "going to be split in",
            "reparing to save",
            "bout to save",
            "ave model",
            "ave checkpoint",
            "ave state",
            "ave weights",
            "umping ",
            "riting ",
            "xporting ",
            "ploading",
            "onsolidat",
            "erging ",
            "save_pretrained",
            "save_16bit_model",
            "Configuration saved in",
        ),
        (
            "Saving the newly created merged model to /opt/ml/model",
            "02/15/2025 01:54:54 - INFO - accelerate.accelerator - Saving DeepSpeed Model and Optimizer",
            "[Rank 0] [Torch] Checkpoint pytorch_model is about to be saved!",
            "INFO:torchtune.utils._logging:Saving checkpoint. This may take some time. Retrieving full model state dict...",
            "Saving model checkpoint to out/checkpoint-500",
            "INFO:torchtune.utils._logging:Retrieving optimizer state dict...",
            "2024-01-01 10:00:00 | INFO | fairseq.checkpoint_utils | Preparing to save checkpoint for epoch 1 @ 500 updates",
            "Consolidating safetensors files on every rank ...",
            "The model is bigger than the maximum size per checkpoint (5GB) and is going to be split in 3 checkpoint shards.",
        ),
        ("Saving time is 3 s", "waiting to save power", "writing logs to runs/1"),
        is_background=True,
    ),
    Pattern(
        "work.evaluating",
        r"\*+ ?Running (?:\w+ )?(?:[Ee]valuation|[Pp]rediction|[Vv]alidation|[Tt]est)|[Mm]emory before validation|[Rr]unning (?:evaluation|validation|inference)|"
        r"[Ss]tart(?:ing)? (?:evaluation|validation|inference|eval\b|test(?:ing)?\b)|\b(?:Evaluating|Validating|Validation sanity check|Sanity Checking)\b|"
        r"[Gg]enerating (?:\d+ |the )?(?:sample|image|video)s?\b|Sampling images|[Bb]egin (?:validation|evaluation)|Inference done \d+/\d+|"
        r"Preparing results for|Running per image evaluation|Evaluate annotation type|Accumulating evaluation results|"
        r"Class +Images +(?:Instances|Labels) .*mAP|(?:[Cc]omput|[Cc]alculat)ing (?:the )?(?:\w+ )?(?:metrics?|mAP|FID|BLEU|WER|scores?)\b",
        (
            "Running ",
            "running ",
            "emory before validation",
            "evaluation",
            "validation",
            "tarting eval",
            "tarting test",
            "Start test",
            "tart eval",
            "Evaluating",
            "Validating",
            "Validation sanity",
            "Sanity Checking",
            "enerating ",
            "Sampling images",
            "tart inference",
            "tarting inference",
            "egin validation",
            "egin evaluation",
            "Inference done ",
            "Preparing results for",
            "Running per image",
            "Evaluate annotation type",
            "Accumulating evaluation",
            "  Images  ",
            "omputing ",
            "alculating ",
        ),
        (
            "***** Running Evaluation *****",
            "===== Memory before validation =====",
            "Evaluating:  12%|#2 | 12/100 [00:10<01:20, 1.2it/s]",
            "Generating samples for epoch 3",
            " Generating 4 images with prompt: a cat",
            "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95):  41%|####      | 5120/12481 [59:51<1:25:41,  1.43it/s]",
            "Running per image evaluation...",
            "[d2.evaluation.coco_evaluation]: Preparing results for COCO format ...",
            'fairseq_cli.train | begin validation on "valid" subset',
        ),
        ("Running tokenizer on dataset", "Computing features"),
        is_background=True,
    ),
    Pattern(
        "work.saved",
        r"[Ss]uccessfully saved|[Ss]aved (?:the |a )?(?:model|checkpoint|state|weights|snapshot)\b|[Cc]heckpoint \S* ?(?:is ready now|saved|was saved)|"
        r"[Ff]inished (?:saving|writing)|[Ss]aving (?:done|finished|completed|took)|\(writing took [\d.]+ seconds\)",
        (
            "uccessfully saved",
            "aved model",
            "aved checkpoint",
            "aved state",
            "aved weights",
            "aved snapshot",
            "aved the ",
            "aved a ",
            "is ready now",
            "heckpoint saved",
            " saved",
            "inished saving",
            "inished writing",
            "aving done",
            "aving finished",
            "aving completed",
            "aving took",
            "(writing took ",
        ),
        (
            "[torch_checkpoint_engine.py:33:commit] [Torch] Checkpoint global_step5000 is ready now!",
            "  successfully saved checkpoint from iteration    1000 to /out [ t 1/8, p 1/1 ]",
            "Saved checkpoint checkpoints/checkpoint_1_500.pt (epoch 1 @ 500 updates, score 3.2) (writing took 5.3 seconds)",
            "Model checkpoint saved at epoch 3",
        ),
        ("Configuration saved in out/config.json",),
        is_background=True,
    ),
    Pattern(
        "work.ended",
        r"`Trainer\.fit` stopped|[Tt]raining (?:is )?(?:completed|finished|done|complete)\b|Finished training",
        (
            "`Trainer.fit` stopped",
            "raining completed",
            "raining finished",
            "raining is ",
            "raining done",
            "raining complete",
            "Finished training",
        ),
        ("`Trainer.fit` stopped: `max_epochs=3` reached.", "Training completed. Do not forget to share your model"),
        ("Training is starting",),
        is_background=True,
    ),
    Pattern(
        "progress.no_data",
        r"No tasks for now|[Dd]etected uneven workload|(?:ran|run|runs) out of (?:data|batches|samples)|[Nn]o more (?:data|batches|samples)\b|"
        r"[Dd]ata(?:set|loader)? (?:is )?exhausted|does not have (?:any )?(?:more )?(?:data|batches)|[Uu]neven (?:number of )?(?:inputs|batches|dataset)|"
        r"fewer (?:batches|samples) than",
        (
            "No tasks for now",
            "uneven workload",
            "out of data",
            "out of batches",
            "out of samples",
            "o more data",
            "o more batches",
            "o more samples",
            "exhausted",
            "does not have",
            "neven ",
            "fewer ",
        ),
        (
            "[2020-06-29 00:42:40,255] [INFO] [task_data_service.py:220:_gen] No tasks for now, maybe more later",
            "2024-07-06 07:36:02,529 INFO Detected uneven workload distribution: Rank 3 successfully reached",
            "rank 3 ran out of data at step 120",
        ),
        ("retries exhausted", "host does not have a GPU"),
    ),
    Pattern(
        "progress.trace_cache",
        r"Invalidate trace cache @ step (?P<step>\d+):? (?:and module \d+: cache has only \d+ modules|expected module (?P<expected>\d+), but got module (?P<got>\d+))",
        ("Invalidate trace cache",),
        (
            "  3%|3         | 270/9847 [05:50<3:17:42,  1.24s/it]Invalidate trace cache @ step 1: expected module 25, but got module 323",
            "Invalidate trace cache @ step 0 and module 1: cache has only 1 modules",
        ),
    ),
    Pattern(
        "progress.rank_done",
        r"\b[Rr]ank[ :=]*(?P<rank>\d+)[: ]+(?:is )?(?:completed|finished|done|exits|exiting)\b",
        ("ank ", "ank:", "ank="),
        ("Rank 4 completed", "rank 0 finished", "[INFO] rank: 3 done"),
        ("Rank 7 failed",),
        flags=re.MULTILINE,
        is_background=True,
    ),
)
