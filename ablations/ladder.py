"""The ladder M0 … M10 of arXiv 2502.19587, the only module with numbers of the paper's recipe.

Each number has its source beside it: "§" and tables refer to the paper (v1 numbering), "code" to the authors' released
repository at ed75b68. Where the two contradict each other, the choice is marked and the other value is a variant with
an @ in its name.
"""

from pathlib import Path

from ablations.variant import EmbeddingProtocol, Modification, Recipe, Variant
from neobert.recipe import (
    Contrastive,
    Data,
    FineTuning,
    Grid,
    Initialization,
    Masking,
    Model,
    Optimization,
    Pretraining,
    Stage,
    Subset,
)

STARTS_FROM = dict.fromkeys(("rte", "stsb", "mrpc", "qnli"), "mnli")  # App. C: "the best MNLI checkpoint"
"""The tasks that start from another one's best weights. The code's mnli←snli and wnli←allnli are not in the paper."""

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
    weight_decay_on="all",  # not stated; the code excludes biases (M10@biases)
    transferred="encoder",  # App. C only names the checkpoint; the code also transfers the layer dense (M10@dense)
    decisive_metric="mean",  # App. C averages two metrics; the code uses the first (M10@metric)
)

CONTRASTIVE_PROTOCOL = Contrastive(
    steps=2000,  # App. D.2: more steps gain little
    texts_per_step=128,  # code conf/finetuning.yaml, per process; its job script has 32 (M9@contrastive-code)
    warmup_steps=2000,  # code conf/scheduler: so the rate rises in all steps
    decay_steps=50_000,  # code conf/scheduler: never reached
    temperature=0.07,  # §5.2.1 and App. D.2
    sampling_exponent=0.5,  # App. D.2; the code's job script has 0.1 (M9@contrastive-code)
    most_negatives=None,  # code contrastive/datasets.py: all that a data set has
    false_negatives="left_out",  # §5.2.1: none is the positive; the code keeps its copies (M9@contrastive-code)
    similar_above=4,  # code contrastive/datasets.py, as intended: its filter has no effect (M9@contrastive-code)
    reduction="mean",  # not stated; the code uses the sum, which clipping then scales down (M9@contrastive-code)
    max_tokens=1024,  # code conf/tokenizer max_length
    pooling="mean",  # §5.2
    instructed="queries",  # App. D.3, Table 7: one per data set; the code's trainer adds none (M9@contrastive-code)
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

EMBEDDING_PROTOCOL = EmbeddingProtocol(
    contrastive=CONTRASTIVE_PROTOCOL,
    pairs="paper",  # App. D.2; the code reads other data sets (M9@contrastive-code)
    instructions="paper",  # App. D.3, Tables 8 and 9; mteb's own: M9@mteb-prompts, the code's: M9@code-prompts
    precision="fp16",  # App. D.2; code scripts/evaluation/run_mteb.py, by autocast
)


PAPER = "arXiv 2502.19587"

M0 = Variant(
    name="M0",
    title="Baseline",
    source=f"{PAPER} §4, Table 2",
    recipe=Recipe(
        pretraining=Pretraining(
            model=Model(
                vocabulary_size=30_522,  # code conf/tokenizer/google.yaml; not padded
                layers=12,  # Table 1
                width=768,  # Table 1
                heads=12,  # Table 1
                feedforward_width=3072,  # code conf/model/120M.yaml
                positions="learned",  # Table 2
                rotary_base=10_000,  # code rotary.py; unused with learned positions
                feedforward="gelu",  # Table 2
                norm="layer_norm",  # Table 2, before the block
                norm_epsilon=1e-8,  # code conf/model/bert.yaml
                block="pre_norm",  # Table 2, "Pre-LN"
                tied_embeddings=False,  # code model.py: the decoder is a matrix of its own
                dropout=0,  # code: conf says 0.1 under a name the model ignores, so M0 was trained without (M0@dropout)
                initialization=Initialization(
                    distribution="uniform",  # code model.py
                    weight_scale=0.02,  # code model.py decoder_init_range
                    embedding_scale=0.02,  # code model.py embedding_init_range
                    position_scale=0.02,  # code model.py embedding_init_range
                ),
            ),
            data=Data(
                corpus="wikibook",  # Table 2
                tokenizer="wordpiece",  # Table 2
                long_documents="cut",  # code: truncated to max_length when tokenised
            ),
            masking=Masking(
                rate=0.15,  # Table 2
                mask_share=0.8,  # Table 2
                random_share=0.1,  # Table 2
            ),
            packing="padded",  # Table 2
            optimization=Optimization(
                optimizer="adam",  # Table 2
                beta1=0.9,  # code conf/optimizer/adam.yaml
                beta2=0.999,  # code conf/optimizer/adam.yaml
                epsilon=1e-8,  # code conf/optimizer/adam.yaml
                weight_decay=0,  # code conf/optimizer/adam.yaml
                clip_norm=1.0,  # §3.3
                peak_learning_rate=1e-4,  # code conf/optimizer/adam.yaml; the paper gives no rate for the ablations
                decay="linear",  # Table 2
                floor_fraction=0.1,  # §3.3
            ),
            stages=(
                Stage(
                    context=512,  # Table 2
                    tokens_per_step=131_072,  # Table 2; code 2 GPUs × 128 × 512
                    steps=1_000_000,  # §4
                    warmup_steps=2_000,  # §3.3
                    stable_steps=0,  # the rate decays directly after the warm-up
                    decay_steps=900_000,  # §3.3: 90 % of the steps
                    mixture=(Subset(minimum_tokens=0, share=1.0),),
                ),
            ),
            precision="bf16",  # code conf/trainer/mlm.yaml
            seed=0,  # code conf/pretraining.yaml
            start=None,  # random weights
        ),
        finetuning=GLUE_PROTOCOL,
        grid=LIMITED_GRID,
        checkpoints="last_stage",  # Figure 1 shows one bar per model
        embedding=EMBEDDING_PROTOCOL,
    ),
)

ROTARY = Modification(
    "RoPE",
    source=f"{PAPER} Table 2",
    row="Positional embedding",
    model={"positions": "rotary"},  # Table 2
)
SWIGLU = Modification(
    "SwiGLU",
    source=f"{PAPER} Table 2",
    row="Activation",
    model={"feedforward": "swiglu"},  # Table 2; hidden width int(2/3 · nominal), as in the code
)
RMS_NORM = Modification(
    "RMSNorm",
    source=f"{PAPER} Table 2",
    row="Pre-LN",
    model={
        "norm": "rms_norm",  # Table 2
        "norm_epsilon": 1e-5,  # code conf/model/neobert.yaml
    },
)
WEB = Modification(
    "RefinedWeb",
    source=f"{PAPER} Table 2",
    row="Dataset",
    data={"corpus": "web"},  # Table 2
)
LLAMA_TOKENIZER = Modification(
    "LLaMA Tokenizer",
    source=f"{PAPER} Table 2",
    row="Tokenizer",
    data={"tokenizer": "bpe"},  # Table 2
    model={"vocabulary_size": 32_064},  # code conf/tokenizer/llama.yaml
)
ADAMW = Modification(
    "AdamW",
    source=f"{PAPER} Table 2",
    row="Optimizer",
    optimization={
        "optimizer": "adamw",  # Table 2
        "beta2": 0.95,  # §3.3
        "weight_decay": 0.01,  # code conf/optimizer/adamw.yaml; §3.3's 0.1 is NeoBERT's
    },
)
COSINE = Modification(
    "Cosine Decay",
    source=f"{PAPER} Table 2",
    row="Scheduler",
    optimization={"decay": "cosine"},  # Table 2
)
MASKING_20 = Modification(
    "20% Masking",
    source=f"{PAPER} Table 2",
    row="Masking scheme",
    masking={
        "rate": 0.2,  # Table 2
        "mask_share": 1.0,  # Table 2
        "random_share": 0.0,  # Table 2
    },
)
PACKING_ACROSS_DOCUMENTS = Modification(
    "Sequence Packing",
    source=f"{PAPER} Table 2; borders ignored as in code collator.py",
    row="Sequence packing",
    packing="packed_across_documents",  # code: no cross-document mask, documents split over rows
)
PACKING_ISOLATED = Modification(
    "Sequence Packing, isolated",
    source=f"{PAPER} §3.3: un-padding without cross-contamination",
    row="Sequence packing",
    packing="packed",
)
SIZE_250M = Modification(
    "250M Parameters",
    source=f"{PAPER} Table 2",
    row="Model size",
    model={
        "layers": 16,  # Table 2
        "width": 1056,  # Table 2; the code has 1008 (M7@code)
        "feedforward_width": 4224,  # four times the width, as everywhere in the code
    },
)
SIZE_250M_CODE = Modification(
    "250M Parameters",
    source="code conf/model/250M.yaml",
    row="Model size",
    model={
        "layers": 16,  # code conf/model/250M.yaml
        "width": 1008,  # code conf/model/250M.yaml
        "feedforward_width": 4032,  # code conf/model/250M.yaml
    },
)
DEEP_NARROW = Modification(
    "Optimal Depth-to-Width",
    source=f"{PAPER} Table 2",
    row="Depth - Width",
    model={
        "layers": 28,  # Table 2
        "width": 768,  # Table 2
        "feedforward_width": 3072,  # code conf/model/250M-opt.yaml
    },
)
LARGE_BATCH = Modification(
    "2M-token Batch",
    source=f"{PAPER} Table 2, §3.3",
    row="Batch size",
    stages=({"tokens_per_step": 2_097_152},),  # Table 2; App. A: 8 GPUs × 32 × 8 × 1,024
    optimization={
        "peak_learning_rate": 6e-4,  # §3.3; code adamw.yaml has 1e-4 (M9@code)
        "weight_decay": 0.1,  # §3.3; code adamw.yaml has 0.01 (M9@code)
    },
)
LARGE_BATCH_CODE = Modification(
    "2M-token Batch",
    source="code jobs/neobert.sh, conf/optimizer/adamw.yaml (rate 1e-4 and weight decay 0.01 as in M4 … M8)",
    row="Batch size",
    stages=({"tokens_per_step": 2_097_152},),  # code jobs/neobert.sh: 8 GPUs × 64 × 4 × 1,024
)
LONG_CONTEXT = Modification(
    "4,096-token Context",
    source=f"{PAPER} Table 2, §3.2, App. A",
    row="Context length",
    stages=(
        {"context": 1024},  # §3.2, first stage
        {
            "context": 4096,  # §3.2, second stage
            "steps": 50_000,  # §3.2
            "warmup_steps": 0,  # §3.3: constant at 10 % of the peak
            "decay_steps": 0,  # §3.3
            "mixture": (
                Subset(minimum_tokens=0, share=0.2),  # §3.2
                Subset(minimum_tokens=1024, share=0.4),  # §3.2 says ">"; code longer_seq.py ">=", as here
                Subset(minimum_tokens=2048, share=0.4),  # §3.2
            ),
        },
    ),
    finetuning={"max_tokens": 1024},  # code jobs/glue/launcher.sh, for NeoBERT
)
LARGER_GRID = Modification(
    "Larger Grid Search",
    source=f"{PAPER} §4, App. C",
    row="GLUE grid",
    grid=EXTENDED_GRID,
    checkpoints="every_stage",  # Table 3 prints NeoBERT-1024 and NeoBERT-4096
)
LARGER_GRID_AS_TEXT = Modification(
    "Larger Grid Search, as in the text",
    source=f"{PAPER} App. C, text",
    row="GLUE grid",
    grid=EXTENDED_GRID_AS_TEXT,
    checkpoints="every_stage",  # Table 3
)
INTERVAL_CODE = Modification(
    "Evaluations as in the code",
    source="code glue/train.py, conf/trainer/glue.yaml",
    row="GLUE protocol",
    finetuning={
        "evaluation_interval_steps": 1000,  # code conf/trainer/glue.yaml eval_steps; App. C has 500
        "epoch_counted_in": "examples",  # code glue/train.py: min(1000, n // batch, len(dataloader) · batch // 10)
    },
)
DENSE_CODE = Modification(
    "Transfer with the layer dense",
    source="code glue/train.py: of MNLI's weights only those named classifier are left out",
    row="GLUE protocol",
    finetuning={"transferred": "encoder_and_dense"},  # code glue/train.py
)
BIASES_CODE = Modification(
    "No weight decay on biases",
    source="code glue/train.py: its list also names LayerNorm.weight, which no norm of these models is called",
    row="GLUE protocol",
    finetuning={"weight_decay_on": "all_but_biases"},  # code glue/train.py no_decay
)
METRIC_CODE = Modification(
    "Choices by the first metric",
    source="code glue/train.py: the first metric ends a trial, matched accuracy chooses MNLI's checkpoint",
    row="GLUE protocol",
    finetuning={"decisive_metric": "first"},  # code glue/train.py, TASK_TO_METRIC["mnli"]
)
BF16_RESIDUAL = Modification(
    "bf16 residual stream",
    source="code: DeepSpeed in bf16",
    precision="bf16_residual",  # code conf/trainer/mlm.yaml under DeepSpeed, whose optimizer keeps weights in fp32 too
)
DROPOUT = Modification(
    "Dropout 0.1",
    source="code conf/model/bert.yaml, as its author meant it",
    model={"dropout": 0.1},  # code conf/model/bert.yaml dropout_prob
)

CONTRASTIVE_CODE = Modification(
    "Contrastive fine-tuning as in the code",
    source="code src/neobert/contrastive, jobs/contrastive/finetune.sh",
    embedding={
        "pairs": "code",  # code scripts/contrastive/preprocess.py: 17 sets, with PAQ and QQP, without four of App. D.2
    },
    contrastive={
        "texts_per_step": 32,  # code jobs/contrastive/finetune.sh, of each of four processes, which share no negatives
        "sampling_exponent": 0.1,  # code jobs/contrastive/finetune.sh
        "false_negatives": "kept",  # code contrastive/loss.py: all other documents of the batch
        "similar_above": None,  # code contrastive/datasets.py: what its filter returns is dropped
        "reduction": "sum",  # code contrastive/loss.py
        "instructed": "nothing",  # code contrastive/trainer.py, and scripts/evaluation/run_mteb.py
    },
)
MTEB_PROMPTS = Modification(
    "Instructions of mteb",
    source="mteb 2.26.24, the prompts of its tasks",
    embedding={"instructions": "mteb"},  # mteb's task metadata
)
CODE_PROMPTS = Modification(
    "Instructions of the code, before documents too",
    source="code conf/mteb_task_to_instruction_{query,corpus}.json, scripts/evaluation/wrappers.py",
    embedding={"instructions": "code"},  # code conf/mteb_task_to_instruction_{query,corpus}.json
    contrastive={"instructed": "queries_and_documents"},  # code scripts/evaluation/wrappers.py, which no script calls
)

# Figure 1: "All modifications are cumulative, except for M3 and M6 in grey": M4 continues M2, M7 continues M5.
M1 = M0.derive("M1", ROTARY, SWIGLU, RMS_NORM)
M2 = M1.derive("M2", WEB)
M3 = M2.derive("M3", LLAMA_TOKENIZER, kept=False)
M4 = M2.derive("M4", ADAMW, COSINE)
M5 = M4.derive("M5", MASKING_20)
M6 = M5.derive("M6", PACKING_ACROSS_DOCUMENTS, kept=False)
M7 = M5.derive("M7", SIZE_250M)
M8 = M7.derive("M8", DEEP_NARROW)
M9 = M8.derive("M9", LARGE_BATCH, LONG_CONTEXT, title="Training Scale")
M10 = M9.derive("M10", LARGER_GRID)

M0_DROPOUT = M0.derive("M0@dropout", DROPOUT, kept=False)
M6_ISOLATED = M5.derive("M6@isolated", PACKING_ISOLATED, kept=False)
M7_CODE = M5.derive("M7@code", SIZE_250M_CODE, kept=False)
M9_CODE = M8.derive("M9@code", LARGE_BATCH_CODE, LONG_CONTEXT, title="Training Scale", kept=False)
M9_CONTRASTIVE_CODE = M9.derive("M9@contrastive-code", CONTRASTIVE_CODE, kept=False)
M9_MTEB_PROMPTS = M9.derive("M9@mteb-prompts", MTEB_PROMPTS, kept=False)
M9_CODE_PROMPTS = M9.derive("M9@code-prompts", CODE_PROMPTS, kept=False)
M9_BF16_RESIDUAL = M9.derive("M9@bf16-residual", BF16_RESIDUAL, kept=False)
M10_TEXT = M9.derive("M10@text", LARGER_GRID_AS_TEXT, kept=False)

# The GLUE protocol of the released code, one reading at a time and all at once. They continue M10, so that a difference
# to M10 is the effect of the reading; all of them measure M9's weights.
M10_INTERVAL = M10.derive("M10@interval", INTERVAL_CODE, kept=False)
M10_DENSE = M10.derive("M10@dense", DENSE_CODE, kept=False)
M10_BIASES = M10.derive("M10@biases", BIASES_CODE, kept=False)
M10_METRIC = M10.derive("M10@metric", METRIC_CODE, kept=False)
M10_CODE = M10.derive(
    "M10@code",
    INTERVAL_CODE,
    DENSE_CODE,
    BIASES_CODE,
    METRIC_CODE,
    title="GLUE protocol as in the code",
    kept=False,
)

TITLE = "From BERT to NeoBERT, step by step"
LAST_KEPT = M10  # designs refer to its lineage, and leave-one-out to M9, the last step that changes pre-training
PUBLISHED_NUMBERS = Path(__file__).resolve().parents[1] / "reports" / "published"
PRINTED_NAMES = {"M10": "NeoBERT"}  # caption of Table 3: the two checkpoints under the larger grid
