//! `yardstick plan --cost`, which needs no GPU.

use serde_json::Value;
use support::run;

/// The cost of a step of GPT-2 124M in bf16, in micro-batches of 32 sequences.
fn cost(settings: &[&str]) -> Value {
    let plan = ["plan", "--workload", "gpt2-124m", "--device", "cuda", "--cost", "--json"];
    let micro_batch = ["--set", "batch.micro_sequences=32", "--set", "precision.compute=bf16"];
    let anywhere = ["--device-memory", "80GiB"];
    let plan = run(&[&plan[..], &micro_batch, &anywhere, settings].concat()).expect(0);
    serde_json::from_str::<Value>(&plan.stdout).unwrap()["cost"].clone()
}

/// An op's figure; 0 where it is not called.
fn figure(cost: &Value, op: &str, name: &str) -> f64 {
    let ops = cost["ops"].as_array().unwrap();
    let found = ops.iter().find(|cost| cost["op"] == op);
    found.map_or(0.0, |cost| cost[name].as_f64().unwrap())
}

#[test]
fn a_step_costs_what_its_calls_cost() {
    let one = cost(&["--set", "batch.global_sequences=32"]);
    let tokens = 32.0 * 1024.0;
    assert_eq!(one["tokens"].as_f64(), Some(tokens));
    // A stream of 768 columns, read and written by each of 25 norms, with two statistics a row.
    let stream = 2.0 * tokens * 768.0;
    let parameters = 2.0 * 2.0 * 768.0;
    let norms = 25.0 * (2.0 * stream + 8.0 * tokens + parameters);
    assert_eq!(figure(&one, "norm forward", "bytes"), norms);
    assert_eq!(figure(&one, "norm forward", "launches"), 25.0);
    // X, W and b, and Y before and after GELU.
    let expand = 12.0 * (2.0 * (tokens * 768.0 + 3072.0 * 768.0 + 3072.0) + 8.0 * stream);
    assert_eq!(figure(&one, "mlp_up forward", "bytes"), expand);
    assert_eq!(figure(&one, "mlp_up forward", "flops"), 12.0 * 2.0 * tokens * 768.0 * 3072.0);
    // The gradients of queries, then of keys and values, each from dout, q, k, v and two statistics
    // of 12 heads; before them one of the statistics, from out and dout.
    let of_heads = 4.0 * tokens * 12.0;
    let attention = 12.0 * ((1.0 + 4.0 + 2.0 + 4.0 + 2.0) * stream + 5.0 * of_heads);
    assert_eq!(figure(&one, "attention backward", "bytes"), attention);
    // Gradients, weights and moments in f32, and rounded weights; in buckets of 32 MiB.
    let update = 124_439_808.0 * (4.0 + 3.0 * 8.0 + 2.0);
    let found = figure(&one, "AdamW", "bytes") / update;
    assert!((1.0..1.005).contains(&found), "padding and decay: {found}");
    assert!(figure(&one, "AdamW", "launches") < 16.0, "{one:#}");
    let sum = |name| -> f64 {
        let ops = one["ops"].as_array().unwrap().iter();
        ops.map(|op| op[name].as_f64().unwrap()).sum()
    };
    for name in ["launches", "bytes", "flops"] {
        assert_eq!(one["total"][name].as_f64(), Some(sum(name)), "{name}");
    }

    let two = cost(&["--set", "batch.global_sequences=64"]);
    assert_eq!(two["tokens"].as_f64(), Some(2.0 * tokens));
    assert_eq!(figure(&two, "norm forward", "bytes"), 2.0 * norms);
    assert_eq!(figure(&two, "AdamW", "bytes"), figure(&one, "AdamW", "bytes"));
    let added = figure(&two, "mlp_up dW", "bytes") - 2.0 * figure(&one, "mlp_up dW", "bytes");
    assert_eq!(added, 12.0 * 4.0 * 768.0 * 3072.0, "the second micro-batch reads the gradients");
}

#[test]
fn recomputation_and_sharding_are_part_of_the_cost() {
    let [kept, selective, full] = ["none", "selective", "full"]
        .map(|level| cost(&["--set", &format!("run.recompute={level}")]));
    for (cost, norms) in [(&kept, 0.0), (&selective, 24.0), (&full, 22.0)] {
        let micro_batches = figure(cost, "embedding forward", "calls");
        assert_eq!(figure(cost, "norm recompute", "calls"), norms * micro_batches, "{cost:#}");
    }
    assert!(figure(&full, "mlp_up recompute", "flops") > 0.0);
    let sharded = cost(&["--ranks", "4", "--set", "parallel.sharded=optimizer"]);
    let share = figure(&sharded, "AdamW", "bytes") / figure(&kept, "AdamW", "bytes");
    assert!((share * 4.0 - 1.0).abs() < 1e-3, "{share}");
}

#[test]
fn times_are_those_at_the_given_rates() {
    let cost = cost(&["--matmul-rate", "1e12", "--memory-rate", "1e10"]);
    for op in cost["ops"].as_array().unwrap() {
        let [flops, bytes, seconds] =
            ["flops", "bytes", "seconds"].map(|name| op[name].as_f64().unwrap());
        assert_eq!(seconds, (flops / 1e12).max(bytes / 1e10), "{op:#}");
    }
    let text = run(&["plan", "--device", "cuda", "--cost"]).expect(0).stdout;
    assert!(text.contains("at 790 TFLOP/s and 3.00 TB/s"), "{text}");
}

#[test]
fn a_cost_that_is_not_known_is_refused() {
    run(&["plan", "--cost"]).expect(2).expect_stderr(&["--cost: expected --device cuda"]);
    let plan = ["plan", "--device", "cuda", "--cost"];
    let rates = [["--matmul-rate", "0"], ["--memory-rate", "inf"], ["--memory-rate", "fast"]];
    for rate in rates {
        run(&[&plan[..], &rate].concat()).expect(2).expect_stderr(&[rate[0], "above 0"]);
    }
}

/// Four ranks with two micro-batches each.
#[test]
fn sums_of_sharded_gradients_and_copies_into_windows_are_part_of_the_cost() {
    let rest = |sharded: &str| {
        let sharded = format!("parallel.sharded={sharded}");
        let sizes = ["--ranks", "4", "--set", "batch.global_sequences=256"];
        let cost = cost(&[&sizes[..], &["--set", &sharded]].concat());
        figure(&cost, "everything else", "bytes")
    };
    let parameters = 124_439_808.0;
    let optimizer = rest("optimizer");
    let close = |found: f64, expected: f64| {
        let padded = found / expected;
        assert!((1.0..1.01).contains(&padded), "{found} and {expected}: {padded}");
    };
    // A search for values that are not finite.
    close(optimizer, 4.0 * parameters);
    // Another search, as each micro-batch is reduced: the first one's part is written to the sums,
    // the second one's is added to them.
    let gradients = rest("gradients");
    close(gradients - optimizer, 4.0 * parameters + (8.0 + 12.0) * parameters / 4.0);
    // A shard is read and written in a window before each gather: of all blocks twice in each
    // micro-batch but the last one, which stays for backward.
    let copied = rest("weights") - gradients;
    let gather = 4.0 * parameters / 4.0;
    assert!((2.5 * gather..4.5 * gather).contains(&copied), "{copied} and {gather}");
}
