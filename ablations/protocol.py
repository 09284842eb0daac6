"""How the paper measures a model on GLUE and as an embedder: grids, protocols, transfer. Sources as in ladder.py."""

from ablations.modification import Embedding
from neobert.recipe import Contrastive, FineTuning, Grid, Optimization

TRANSFER_TASK = "mnli"  # App. C: "the best MNLI checkpoint"
TRANSFERRED_TASKS = ("rte", "stsb", "mrpc", "qnli")  # App. C; the code's mnli←snli and wnli←allnli are not in the paper

LIMITED_GRID = Grid(
    batch_sizes=(16, 32),  # §4
    learning_rates=(1e-5, 2e-5, 3e-5),  # §4
    weight_decays=(1e-2,),  # not stated; 1e-2 makes these six points a subset of the sixty
)
EXTENDED_GRID = Grid(
    batch_sizes=(2, 4, 8, 16, 32),  # caption of Table 5 and code jobs/glue/launcher.sh; the text of App. C has no 2
    learning_rates=(5e-6, 6e-6, 8e-6, 1e-5, 2e-5, 3e-5),  # caption of Table 5 and code; the text of App. C has no 8e-6
    weight_decays=(1e-2, 1e-5),  # App. C
)
EXTENDED_GRID_AS_TEXT = Grid(
    batch_sizes=(4, 8, 16, 32),  # App. C, text
    learning_rates=(5e-6, 6e-6, 1e-5, 2e-5, 3e-5),  # App. C, text
    weight_decays=(1e-2, 1e-5),  # App. C, text
)

GLUE_PROTOCOL = FineTuning(
    epochs=10,  # App. C
    max_tokens=512,  # code jobs/glue/launcher.sh, for the ablations
    train_examples=None,  # all
    pooling="cls",  # code model.py: first token → dropout → dense → tanh → dropout → linear
    dropout=0.1,  # code conf/glue.yaml classifier_dropout
    classifier_scale=0.02,  # code conf/glue.yaml classifier_init_range
    beta1=0.9,  # code conf/optimizer/adamw.yaml
    beta2=0.95,  # code conf/optimizer/adamw.yaml
    epsilon=1e-8,  # code conf/optimizer/adamw.yaml
    warmup_fraction=0.06,  # code glue/train.py
    decay_fraction=0.9,  # code glue/train.py: linear decay ends at 90 % of the steps
    floor_fraction=0.1,  # code glue/train.py: and stays at 10 % of the peak
    evaluation_interval_steps=500,  # App. C: every min(500, len(dataloader) / 10) steps (M10@interval: the code's rule)
    evaluations_per_epoch=10,  # App. C
    patience_evaluations=15,  # App. C
    precision="bf16",  # the code trains in fp16 on V100s; bf16 needs no loss scaling
    epoch_counted_in="steps",  # App. C; the code counts examples (M10@interval)
    weight_decay_on="all",  # not stated; the code spares biases (M10@biases)
    transferred="encoder",  # App. C names the checkpoint alone; the code takes the layer dense along (M10@dense)
    decisive_metric="mean",  # App. C averages two metrics; the code watches the first (M10@metric)
)

CONTRASTIVE_PROTOCOL = Contrastive(
    steps=2000,  # App. D.2: more steps gain little
    texts_per_step=128,  # code conf/finetuning.yaml, of each process; its job script has 32 (M9@contrastive-code)
    warmup_steps=2000,  # code conf/scheduler: so the rate rises all the way
    decay_steps=50_000,  # code conf/scheduler: never reached
    temperature=0.07,  # §5.2.1 and App. D.2
    sampling_exponent=0.5,  # App. D.2; the code's job script has 0.1 (M9@contrastive-code)
    most_negatives=None,  # code contrastive/datasets.py: as many as a data set has
    false_negatives="left_out",  # §5.2.1: none is the positive; the code keeps its copies (M9@contrastive-code)
    similar_above=4,  # code contrastive/datasets.py, as meant: its filter has no effect (M9@contrastive-code)
    reduction="mean",  # not stated; the code has the sum, which the clipping then scales down (M9@contrastive-code)
    max_tokens=1024,  # code conf/tokenizer max_length
    pooling="mean",  # §5.2
    instructed="queries",  # App. D.3, Table 7: one a data set; the code's trainer adds none (M9@contrastive-code)
    optimization=Optimization(
        optimizer="adamw",  # code conf/optimizer/adamw.yaml
        beta1=0.9,  # code conf/optimizer/adamw.yaml
        beta2=0.95,  # code conf/optimizer/adamw.yaml
        epsilon=1e-8,  # code conf/optimizer/adamw.yaml
        weight_decay=0.01,  # code conf/optimizer/adamw.yaml
        clip_norm=1.0,  # code contrastive/trainer.py
        peak_learning_rate=1e-4,  # code conf/optimizer/adamw.yaml
        decay="cosine",  # code conf/scheduler
        floor_fraction=0.1,  # code conf/scheduler
    ),
    precision="bf16",  # code: accelerate's mixed precision
    seed=0,
)

EMBEDDING_PROTOCOL = Embedding(
    contrastive=CONTRASTIVE_PROTOCOL,
    pairs="paper",  # App. D.2; the code reads other data sets (M9@contrastive-code)
    instructions="paper",  # App. D.3, Tables 8 and 9; mteb's own: M9@mteb-prompts, the code's: M9@code-prompts
    precision="fp16",  # App. D.2; code scripts/evaluation/run_mteb.py, by autocast
)
