//! A run whose every attempt has another layout: it resumes from every tier as if one rank had
//! trained without a stop. That the state of any layout is restored in any other is tested in one
//! process (`trainer/src/step/tests`).

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use support::s3::S3Server;
use support::{Folder, finish, mpirun};

use super::layout::Layout;

/// The layouts of the attempts, in order.
const ATTEMPTS: [Layout; 7] = [
    Layout::ONE_RANK,
    Layout { data: 2, shard: 1, sharded: "optimizer" },
    Layout { data: 1, shard: 3, sharded: "weights" },
    Layout { data: 2, shard: 2, sharded: "gradients" },
    Layout { data: 2, shard: 3, sharded: "weights" },
    Layout { data: 4, shard: 1, sharded: "none" },
    Layout::ONE_RANK,
];

/// Names of the tiers, the nearest first.
const TIERS: [&str; 3] = ["nvme", "shared", "object"];

/// A run that saves on a disk, in a shared folder and in an object store.
struct Run {
    folder: Folder,
    server: S3Server,
}

impl Run {
    /// Folder of a tier.
    fn tier(&self, name: &str) -> PathBuf {
        if name == "object" { self.server.file("runs") } else { self.folder.sibling(name) }
    }

    /// Trains up to a step, which all tiers then have.
    fn train(&self, layout: Layout, steps: usize) {
        let address = |name: &str| match name {
            "object" => self.server.url("runs"),
            _ => support::text(&self.tier(name)),
        };
        let tiers = TIERS.map(|name| format!("checkpoint.{name}.path={}", address(name)));
        let settings = [
            support::SEVERAL_BUCKETS,
            "batch.micro_sequences=1",
            "batch.global_sequences=12",
            "telemetry.matmul_probe=0s",
        ];
        let settings = settings.into_iter().chain(tiers.iter().map(String::as_str));
        let layout_flags = layout.flags();
        let (out, steps) = (self.folder.text(), steps.to_string());
        let mut arguments = vec!["train", "--out", &out, "--steps", &steps, "--threads", "1"];
        arguments.extend(settings.flat_map(|setting| ["--set", setting]));
        arguments.extend(layout_flags.iter().map(String::as_str));
        let mut command = mpirun(layout.ranks(), &arguments);
        command.envs(self.server.environment());
        finish(command).expect(0);
    }

    /// Bytes that the last attempt has read from each tier.
    fn bytes_read(&self, attempt: &Value) -> [u64; TIERS.len()] {
        let sources = &attempt["recovery"]["sources"];
        std::array::from_fn(|tier| {
            assert_eq!(sources[tier]["tier"], TIERS[tier]);
            sources[tier]["bytes"].as_u64().unwrap()
        })
    }
}

#[test]
fn a_run_resumes_in_another_layout_from_each_tier() {
    let undisturbed = Run { folder: Folder::new(), server: S3Server::start() };
    let run = Run { folder: Folder::new(), server: S3Server::start() };
    undisturbed.train(Layout::ONE_RANK, ATTEMPTS.len());
    let mut saved = Value::Null;
    for (attempt, &layout) in ATTEMPTS.iter().enumerate() {
        // The nearer tiers are lost, so that each tier is restored from in turn.
        let lost = attempt % TIERS.len();
        if attempt > 0 {
            TIERS[..lost].iter().for_each(|tier| fs::remove_dir_all(run.tier(tier)).unwrap());
        }
        run.train(layout, attempt + 1);
        if attempt > 0 {
            let case = format!("{} to {layout}", ATTEMPTS[attempt - 1]);
            let resumed = &run.folder.record()["attempts"][attempt];
            assert_eq!(resumed["resumed_after_step"], attempt, "{case}");
            assert_eq!(resumed["recovery"]["weights"], saved, "{case}");
            for (tier, bytes) in run.bytes_read(resumed).into_iter().enumerate() {
                assert_eq!(bytes > 0, tier == lost, "{case}: {bytes} bytes from {}", TIERS[tier]);
            }
        }
        saved = run.folder.record()["fingerprint"]["weights"].clone();
        assert!(saved.is_string(), "the digest of the weights at the end");
    }
    let losses = [&run, &undisturbed].map(|run| run.folder.losses());
    assert_eq!(losses[0].len(), ATTEMPTS.len());
    for (found, expected) in losses[0].iter().zip(&losses[1]) {
        let difference = expected.relative_difference(*found);
        assert!(difference < 1e-5, "step {}: {found:?}, not {expected:?}", expected.step);
    }
}
