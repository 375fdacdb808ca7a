"""What every_eval_ever 0.3.0 asks of the two kinds of file, as far as an exporter of ours can meet or miss it.

Written from the facts in that project's generated types (every_eval_ever/eval_types.py at commit 09496fc), its
schemas/instance_level_eval.schema.json (21b3d1a) and the checks its validator makes beyond the schema
(.agents/skills/eee-dataset-conversion/reference/datastore-gate.md at 076ff86, instance-level.md at 8e827ab). Parts that
we never write (judges, tools, several turns) are left out: here they count as unknown, and unknown is an error.
"""

from typing import Any

TEXT = {"type": "string", "minLength": 1}
NUMBER = {"type": "number"}
STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}


def closed(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """An object with these fields and no others."""
    fields = required | (optional or {})
    return {"type": "object", "required": list(required), "properties": fields, "additionalProperties": False}


UNIT = "[0-9A-Fa-f]"
PATH = rf"^data/[^/]+/[^/]+/[^/]+/{UNIT}{{8}}-{UNIT}{{4}}-4{UNIT}{{3}}-[89ABab]{UNIT}{{3}}-{UNIT}{{12}}_samples\.jsonl$"

MODEL = closed(
    {
        "name": TEXT,
        "id": {"type": "string", "pattern": "^[^/]+/[^/]+$"},
        "additional_details": {
            **STRINGS,
            "required": ["deployment_type", "model_availability"],
            "properties": {
                "deployment_type": {"enum": ["self_deployed", "externally_managed", "unknown"]},
                "model_availability": {"enum": ["open_weights", "closed_weights", "unknown"]},
            },
        },
    },
    {"developer": TEXT, "inference_engine": closed({"name": TEXT, "version": TEXT})},
)

SOURCE = {
    "oneOf": [
        closed(
            {"dataset_name": TEXT, "source_type": {"const": "hf_dataset"}, "hf_repo": TEXT},
            {"hf_split": TEXT, "samples_number": {"type": "integer"}, "additional_details": STRINGS},
        ),
        closed({"dataset_name": TEXT, "source_type": {"const": "other"}}, {"additional_details": STRINGS}),
    ]
}

METRIC = closed(
    {
        "lower_is_better": {"type": "boolean"},
        "score_type": {"const": "continuous"},
        "min_score": NUMBER,
        "max_score": NUMBER,
    },
    {
        **dict.fromkeys(("metric_id", "metric_name", "metric_kind", "metric_unit"), TEXT),
        "evaluation_description": TEXT,
        "additional_details": STRINGS,
    },
)

SCORE = closed(
    {"score": {"type": "number", "minimum": 0, "maximum": 1}},
    {
        "details": STRINGS,
        "uncertainty": closed(
            {},
            {
                "standard_error": closed({"value": NUMBER}, {"method": TEXT}),
                "confidence_interval": closed(
                    {"lower": NUMBER, "upper": NUMBER},
                    {"confidence_level": {"type": "number", "minimum": 0, "maximum": 1}, "method": TEXT},
                ),
                "num_samples": {"type": "integer"},
            },
        ),
    },
)

GENERATION = closed(
    {},
    {
        "generation_args": closed(
            {}, {"prompt_template": TEXT, "execution_command": TEXT, "reasoning": {"type": "boolean"}}
        ),
        "additional_details": STRINGS,
    },
)

AGGREGATE = closed(
    {
        "schema_version": {"const": "0.3.0"},
        "evaluation_id": TEXT,
        "retrieved_timestamp": {"type": "string", "pattern": r"^\d{10}(\.\d+)?$"},
        "source_metadata": closed(
            {
                "source_type": {"enum": ["documentation", "evaluation_run"]},
                "source_organization_name": TEXT,
                "evaluator_relationship": {"enum": ["first_party", "third_party", "collaborative", "other"]},
            },
            {"source_name": TEXT, "additional_details": STRINGS},
        ),
        "eval_library": closed({"name": TEXT, "version": TEXT}, {"additional_details": STRINGS}),
        "model_info": MODEL,
        "evaluation_results": {
            "type": "array",
            "minItems": 1,
            "items": closed(
                {"evaluation_name": TEXT, "source_data": SOURCE, "metric_config": METRIC, "score_details": SCORE},
                {"evaluation_result_id": TEXT, "evaluation_timestamp": TEXT, "generation_config": GENERATION},
            ),
        },
    },
    {
        "evaluation_timestamp": TEXT,
        "detailed_evaluation_results": closed(
            {"format": {"const": "jsonl"}, "file_path": {"type": "string", "pattern": PATH}},
            {
                "hash_algorithm": {"const": "sha256"},
                "checksum": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
                "total_rows": {"type": "integer", "minimum": 1},
                "additional_details": STRINGS,
            },
        ),
    },
)

SAMPLE = closed(
    {
        "schema_version": {"const": "0.3.0"},
        "evaluation_id": TEXT,
        "model_id": TEXT,
        "evaluation_name": TEXT,
        "sample_id": TEXT,
        "interaction_type": {"const": "single_turn"},
        "input": closed(
            {"raw": {"type": "string"}, "reference": {"type": "array", "items": {"type": "string"}}},
            {"choices": {"type": "array", "items": {"type": "string"}}},
        ),
        "output": closed({"raw": {"type": "array", "items": {"type": "string"}}}),
        "answer_attribution": {
            "type": "array",
            "minItems": 1,
            "items": closed(
                {
                    "turn_idx": {"const": 0},
                    "source": {"const": "output.raw"},
                    "extracted_value": {"type": "string"},
                    "extraction_method": TEXT,
                    "is_terminal": {"type": "boolean"},
                }
            ),
        },
        "evaluation": closed({"score": NUMBER, "is_correct": {"type": "boolean"}}),
    },
    {"evaluation_result_id": TEXT, "metadata": STRINGS},
)
