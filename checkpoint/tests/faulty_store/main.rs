//! Checkpoints on an S3 server that has faults, and uploads in parts that kills leave on it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod faults;
mod uploads;

use std::sync::Arc;
use std::time::Duration;

use checkpoint::remote::{Remote, RemoteOptions};
use checkpoint::tier::ObjectTier;
use checkpoint::{
    Claim, Dtype, Error, Failpoints, Identity, NoFailpoints, Part, PartMut, Save, SingleRank,
    Store, TensorBox,
};

/// Time for faults that last.
const PATIENCE: Duration = Duration::from_secs(3);
/// The smallest part that S3 accepts.
const PART_BYTES: usize = 5 << 20;
/// Size of a checkpoint that is uploaded in two parts.
const STATE_BYTES: usize = PART_BYTES + 4096;

/// An attempt of a run whose only tier is a prefix of an object store.
struct Attempt {
    tier: ObjectTier,
    store: Store,
    claim: Claim,
    state_bytes: usize,
}

impl Attempt {
    /// The next attempt of the run under this URL, with a client of these settings.
    fn start(url: &str, settings: Vec<(String, String)>) -> Self {
        Self::start_with(url, settings, PATIENCE)
    }

    fn start_with(url: &str, mut settings: Vec<(String, String)>, patience: Duration) -> Self {
        // The server takes longer for its digest than for all else.
        settings.push(("AWS_UNSIGNED_PAYLOAD".to_owned(), "true".to_owned()));
        let options = RemoteOptions {
            patience,
            slowest_bytes_per_second: 4 << 20,
            settings,
            ..Default::default()
        };
        let remote = Remote::open_with(url, options).unwrap();
        let tier = ObjectTier::new(remote).with_part_bytes(PART_BYTES);
        let identity = Identity::new("run-1", "workload-1");
        let store = Store::open(Arc::new(tier.clone()), &identity).unwrap();
        let claim = store.claim_attempt(1, &SingleRank).unwrap();
        Self { tier, store, claim, state_bytes: STATE_BYTES }
    }

    fn save(&self, step: u64) -> Result<(), Error> {
        self.save_with(step, &NoFailpoints)
    }

    fn save_with(&self, step: u64, failpoints: &dyn Failpoints) -> Result<(), Error> {
        let parts = [Part { tensor: self.tensor(), data: &self.state(step) }];
        let request = Save { step, claim: self.claim, number: 0, state: step.into(), parent: None };
        self.store.save(&request, &parts, &SingleRank, failpoints).map(|_| ())
    }

    /// The step that is restored, after every bit was compared and no checkpoint rejected.
    fn resume(&self) -> Result<u64, Error> {
        let mut data = vec![0; self.state_bytes];
        let mut parts = [PartMut { tensor: self.tensor(), data: &mut data }];
        let restored = self.store.resume(&mut parts, &SingleRank)?.expect("something was saved");
        assert!(
            data == self.state(restored.step),
            "other bits than those of step {}",
            restored.step
        );
        assert!(restored.rejected.is_empty(), "{:?}", restored.rejected);
        Ok(restored.step)
    }

    fn tensor(&self) -> TensorBox {
        TensorBox::whole("weights", Dtype::U8, &[self.state_bytes])
    }

    /// Bytes that differ between steps and between places.
    fn state(&self, step: u64) -> Vec<u8> {
        const PERIOD: u64 = 4099; // a prime
        let byte = |at: u64| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8 ^ step as u8;
        let pattern: Vec<u8> = (0..PERIOD).map(byte).collect();
        let mut state = pattern.repeat(self.state_bytes / pattern.len() + 1);
        state.truncate(self.state_bytes);
        state
    }
}
