//! Identity and validation of workloads.

use super::*;
use crate::presets::{self, parse};

fn smoke() -> Workload {
    presets::load("smoke").unwrap()
}

/// The smoke workload's text with one line replaced.
fn changed(from: &str, to: &str) -> Workload {
    let text = presets::text("smoke").unwrap();
    assert!(text.contains(from), "{from} is not in the preset");
    parse(&text.replace(from, to), "test").unwrap()
}

/// Ids are promises: a record of last year is compared by it. If this fails, old ids are lost.
#[test]
fn the_id_is_frozen() {
    assert_eq!(smoke().id(None), "0e823ebb7613");
}

#[test]
fn the_id_changes_with_every_hashed_key() {
    let mut ids = std::collections::BTreeSet::from([smoke().id(None)]);
    for (from, to) in [
        ("layers = 2", "layers = 3"),
        ("width = 128", "width = 64"),
        ("heads = 4", "heads = 8"),
        ("feed_forward = 512", "feed_forward = 256"),
        ("vocabulary = 256", "vocabulary = 257"),
        ("context = 128", "context = 129"),
        ("source = \"synthetic\"", "source = \"files\""),
        ("source = \"synthetic\"", "source = \"synthetic\"\nseed = 1"),
        ("source = \"synthetic\"", "source = \"synthetic\"\nevaluation_sequences = 1"),
        ("micro_sequences = 4", "micro_sequences = 2"),
        ("sequence_tokens = 128", "sequence_tokens = 64"),
        ("global_sequences = 16", "global_sequences = 32"),
        ("global_sequences = 16", "sequences_per_rank = 16"),
        ("beta1 = 0.9", "beta1 = 0.8"),
        ("beta2 = 0.95", "beta2 = 0.99"),
        ("epsilon = 1e-8", "epsilon = 1e-7"),
        ("weight_decay = 0.1", "weight_decay = 0.0"),
        ("gradient_norm_max = 1.0", "gradient_norm_max = 0.0"),
        ("steps = 200", "steps = 201"),
        ("learning_rate = 3e-3", "learning_rate = 4e-3"),
        ("learning_rate_min = 3e-4", "learning_rate_min = 2e-4"),
        ("warmup_steps = 20", "warmup_steps = 21"),
        ("\"cosine\"", "\"linear\""),
        ("\"cosine\"", "\"warmup-stable-decay\""),
        ("\"cosine\"", "\"warmup-stable-decay\"\ndecay_steps = 9"),
        ("steps = 200", "steps = 200\nseed = 1"),
    ] {
        assert!(ids.insert(changed(from, to).id(None)), "{to} does not change the id");
    }
}

#[test]
fn the_id_does_not_change_with_spelling() {
    let id = smoke().id(None);
    for (from, to) in [
        ("learning_rate = 3e-3", "learning_rate = 0.003"),
        ("weight_decay = 0.1\n", ""), // the default
        ("steps = 200", "seed = 0\nsteps = 200"),
        ("[optimizer]", "[precision]\ncompute = \"f32\"\n\n[optimizer]"),
    ] {
        assert_eq!(changed(from, to).id(None), id, "{to}");
    }
    assert!(id.len() == 12 && id.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')), "{id}");
}

#[test]
fn token_files_count_by_content_not_by_name() {
    let files =
        |data: &str| changed("source = \"synthetic\"", &format!("source = \"files\"\n{data}"));
    let one = files("files = [\"/data/a.bin\"]\nevaluation_files = [\"/data/v.bin\"]");
    let moved = files("files = [\"/elsewhere/b.bin\"]");
    assert_eq!(one.id(Some("d1")), moved.id(Some("d1")));
    assert_ne!(one.id(Some("d1")), one.id(Some("d2")));
    assert_ne!(one.id(Some("d1")), one.id(None));
}

#[test]
fn a_full_workload_round_trips_through_toml() {
    let mut workload = changed("source = \"synthetic\"", "source = \"files\"");
    workload.data.files = vec!["a b.bin".to_owned(), "c\"d.bin".to_owned()];
    workload.data.evaluation_files = vec!["v.bin".to_owned()];
    workload.batch.global_sequences = None;
    workload.batch.sequences_per_rank = Some(8);
    workload.schedule.decay = Decay::WarmupStableDecay;
    workload.schedule.decay_steps = 40;
    workload.schedule.learning_rate = 0.1 + 0.2; // needs all seventeen digits
    workload.validate().unwrap();
    assert_eq!(parse(&presets::to_toml(&workload), "test").unwrap(), workload);
}

#[test]
fn impossible_values_name_their_key() {
    for (from, to, key) in [
        ("layers = 2", "layers = 0", "model.layers = 0"),
        ("width = 128", "width = 0", "model.width = 0"),
        ("heads = 4", "heads = 0", "model.heads = 0"),
        ("heads = 4", "heads = 5", "model.heads = 5: expected a divisor of model.width = 128"),
        ("feed_forward = 512", "feed_forward = 0", "model.feed_forward = 0"),
        ("vocabulary = 256", "vocabulary = 1", "model.vocabulary = 1"),
        ("context = 128", "context = 0", "model.context = 0"),
        ("source = \"synthetic\"", "source = \"files\"", "data.files = []"),
        ("source = \"synthetic\"", "source = \"synthetic\"\nfiles = [\"a\"]", "data.files = "),
        (
            "source = \"synthetic\"",
            "source = \"synthetic\"\nevaluation_sequences = 0",
            "data.evaluation_sequences = 0",
        ),
        (
            "source = \"synthetic\"",
            "source = \"synthetic\"\nevaluation_files = [\"v.bin\"]",
            "data.evaluation_files = [\"v.bin\"]: expected no file",
        ),
        ("micro_sequences = 4", "micro_sequences = 0", "batch.micro_sequences = 0"),
        ("sequence_tokens = 128", "sequence_tokens = 0", "batch.sequence_tokens = 0"),
        ("sequence_tokens = 128", "sequence_tokens = 129", "1 to model.context = 128"),
        ("global_sequences = 16", "", "batch.global_sequences = absent"),
        ("global_sequences = 16", "global_sequences = 16\nsequences_per_rank = 4", "exactly one"),
        (
            "global_sequences = 16",
            "sequences_per_rank = 999999999999",
            "batch.sequences_per_rank = 999999999999: expected at most 268435456",
        ),
        (
            "global_sequences = 16",
            "global_sequences = 999999999999",
            "batch.global_sequences = 999999999999: expected at most 268435456",
        ),
        ("beta1 = 0.9", "beta1 = 1.0", "optimizer.beta1 = 1"),
        ("beta2 = 0.95", "beta2 = -0.1", "optimizer.beta2 = -0.1"),
        ("epsilon = 1e-8", "epsilon = 0.0", "optimizer.epsilon = 0"),
        ("weight_decay = 0.1", "weight_decay = nan", "optimizer.weight_decay = NaN"),
        ("gradient_norm_max = 1.0", "gradient_norm_max = inf", "optimizer.gradient_norm_max = inf"),
        ("steps = 200", "steps = 0", "schedule.steps = 0"),
        ("learning_rate = 3e-3", "learning_rate = 0.0", "schedule.learning_rate = 0"),
        ("learning_rate_min = 3e-4", "learning_rate_min = 1.0", "schedule.learning_rate_min = 1"),
        ("warmup_steps = 20", "warmup_steps = 201", "schedule.warmup_steps = 201"),
        ("steps = 200", "decay_steps = 5\nsteps = 200", "schedule.decay_steps = 5"),
        ("\"cosine\"", "\"warmup-stable-decay\"\ndecay_steps = 181", "schedule.decay_steps = 181"),
    ] {
        let error = changed(from, to).validate().unwrap_err().to_string();
        assert!(error.contains(key), "{to:?}: {error}");
    }
}

/// Products of dimensions are counted in 64 bits: what would wrap there is refused before.
#[test]
fn sizes_that_no_model_has_name_their_key() {
    for (from, to, key) in [
        ("layers = 2", "layers = 1000000000", "model.layers = 1000000000: expected at most 65536"),
        ("width = 128", "width = 4611686018427387904", "model.width = 4611686018427387904"),
        ("feed_forward = 512", "feed_forward = 36028797018963968", "model.feed_forward = 360287"),
        ("vocabulary = 256", "vocabulary = 4294967296", "model.vocabulary = 4294967296"),
        ("context = 128", "context = 4294967296", "model.context = 4294967296"),
        ("width = 128", "width = 32768", "model.heads = 4: expected at least 8"),
        ("micro_sequences = 4", "micro_sequences = 4294967296", "batch.micro_sequences = 42949"),
        ("micro_sequences = 4", "micro_sequences = 268435457", "batch.micro_sequences = 268435457"),
    ] {
        let error = changed(from, to).validate().unwrap_err().to_string();
        assert!(error.contains(key), "{to:?}: {error}");
    }
    let mut large = smoke().model;
    (large.layers, large.width, large.heads) = (1 << 16, 1 << 16, 1 << 9);
    let error = large.validate().unwrap_err().to_string();
    assert!(error.contains("model.width = 65536: expected fewer layers"), "{error}");
}

#[test]
fn accumulation_divides_or_says_why_not() {
    let batch = smoke().batch;
    assert_eq!([1, 2, 4].map(|world| batch.accumulation(world).unwrap()), [4, 2, 1]);
    for world in [3, 8] {
        let error = batch.accumulation(world).unwrap_err().to_string();
        assert!(error.contains("batch.global_sequences = 16"), "{error}");
        assert!(error.contains(&format!("4 x {world} ranks")), "{error}");
    }
    let weak = changed("global_sequences = 16", "sequences_per_rank = 8").batch;
    assert_eq!([1, 3].map(|world| weak.accumulation(world).unwrap()), [2, 2]);
    assert_eq!([1, 3].map(|world| weak.global_sequences(world)), [8, 24]);
    let odd = changed("global_sequences = 16", "sequences_per_rank = 6").batch;
    let error = odd.accumulation(3).unwrap_err().to_string();
    assert!(error.contains("batch.sequences_per_rank = 6"), "{error}");
}
