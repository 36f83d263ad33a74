"""Ratchet from Python: run a recipe, read what came out, use its models. Cells are separated by `# %%`, as
editors and Jupytext read them.

The model has 1M parameters and is made on the first run, in about a minute; everything else takes seconds. No
GPU, no download.
"""

# %% A recipe by name or file, with changed keys. It is checked before anything starts.
import ratchet

recipe = ratchet.load_recipe("online_dpo", profile="test", set={"online.rounds": 1, "evaluate.prompts": 16})
recipe.check()
print(recipe.resolved.online.fit.updates)

# %% Run it. Finished stages are reused, so running the cell again takes no time; after a change only what
# depends on it is made anew.
run = ratchet.run(recipe, home="out", until="evaluate")
print(run, run.report)
print(run.stages()[["stage", "seconds", "result"]])

# %% The evaluation: one row a metric. Comparisons have a 95 % interval; means of one model have none.
results = run.results()
print(results.dropna())
print(results.loc["final.length", "value"])

# %% Training curves: one row a step.
metrics = run.metrics("optimise_1").set_index("step")
print(metrics.filter(like="loss"))

# %% Answers and their rewards: one row an answer. Here, the best answer to each prompt.
answers = run.groups("annotate_1")
print(
    answers.loc[
        answers.groupby("group")["reward.reward_model"].idxmax(), ["prompt", "text", "reward.reward_model"]
    ]
)

# %% The trained policy is a transformers model.
model, tokenizer = run.model("final")
inputs = tokenizer.apply_chat_template(
    [{"role": "user", "content": "What colour is the sky?"}],
    add_generation_prompt=True,
    return_tensors="pt",
    return_dict=True,
)
tokens = model.generate(**inputs, max_new_tokens=16, do_sample=False)
print(tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))

# %% The reward model scores answers.
reward = run.reward_model("reward")
print(reward.score(["What colour is the sky?"] * 2, ["The sky is blue.", "Go away."]))

# %% An error is one sentence, as on the command line.
try:
    ratchet.load_recipe("online_dpo", set={"online.fit.learning_rat": 1e-4})
except ratchet.RatchetError as error:
    print(f"{type(error).__name__}: {error}")
