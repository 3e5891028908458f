//! Golden losses: the expected losses of a workload, whatever computes it.
//!
//! Machines, libraries and numbers of ranks change the rounding of a loss, and so its last digits.
//! A loss that differs by more than rounding explains was computed wrong, and the figures of that
//! run must not be used. Where also the order of sums is that of a trusted run, the bits are equal.
//! `golden_presets.toml` holds the golden losses of built-in workloads.
//! `yardstick fingerprint make` makes those of other workloads from trusted runs.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::files::regular_file::read_named_text;
use crate::limits::CONFIG_BYTES_MAX;
use crate::sum_order::{SumOrder, differences};
use crate::text::in_user_words;

/// Golden losses of built-in workloads.
const PRESETS: &str = include_str!("golden_presets.toml");

/// The losses of a workload on one kind of device. The precision is part of the workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Golden {
    /// Name of the workload, for people.
    pub workload: String,
    /// Id of the workload.
    pub workload_id: String,
    /// `cpu` or `cuda`.
    pub device: String,
    /// Tokens of the global batch, which depends on the number of ranks if the workload sets it per
    /// rank.
    pub tokens_per_step: u64,
    /// Allowed difference of a loss, nats per token.
    pub tolerance_nats: f64,
    /// Step numbers.
    pub steps: Vec<u64>,
    /// Loss of each of these steps, nats per token.
    pub losses: Vec<f64>,
    /// The same losses to the last bit, for some orders of sums.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exact: Vec<ExactLosses>,
}

/// Losses to the last bit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExactLosses {
    /// Loss of each golden step, nats per token.
    pub losses: Vec<f64>,
    /// Order of sums that gives these bits.
    pub order: SumOrder,
}

/// Key of golden losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoldenKey<'a> {
    /// Id of the workload.
    pub workload_id: &'a str,
    /// `cpu` or `cuda`.
    pub device: &'a str,
    /// Tokens of the global batch.
    pub tokens_per_step: u64,
}

/// A file of golden losses.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Goldens {
    #[serde(default)]
    golden: Vec<Golden>,
}

/// Golden losses of a workload, as far as a run can be compared with them.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// Losses with the key of the run.
    Golden(Golden),
    /// Only losses with other keys; the parts in which the nearest differs.
    NotComparable(String),
    /// No losses of the workload.
    Nothing,
}

/// Comparison of a run's losses with the golden ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GoldenCheck {
    /// Number of compared losses, over all attempts.
    pub compared: u64,
    /// Largest difference, nats per token.
    pub worst_nats: f64,
    /// Allowed difference, nats per token.
    pub tolerance_nats: f64,
    /// Step whose loss exceeded the tolerance; `null` if none did.
    pub missed_step: Option<u64>,
    /// True if all compared losses have the bits of a trusted run with the same order of sums;
    /// `null` where no such run is known.
    #[serde(default)]
    pub same_bits: Option<bool>,
    /// Parts in which the order of sums differs from that of the nearest trusted run; `null` where
    /// the bits are compared, and without exact golden losses.
    #[serde(default)]
    pub other_order: Option<String>,
}

/// Error of a loss that is not the golden one: the run is void.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "{}the loss of step {step} is {found:.6}, and the golden loss {golden:.6} (tolerance \
     {tolerance_nats} nats): this machine does not compute the workload right, and its figures \
     must not be used",
    far.as_ref().map_or(String::new(), FarRank::text)
)]
pub struct GoldenMiss {
    /// The step, from 1.
    pub step: u64,
    found: f64,
    golden: f64,
    tolerance_nats: f64,
    /// The only rank whose own loss is far from the golden one, and so the cause.
    pub far: Option<FarRank>,
}

/// A rank whose loss on its own part of the batch is wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FarRank {
    /// Number of the rank.
    pub rank: usize,
    /// Loss on its own part, nats per token.
    pub loss: f64,
}

impl FarRank {
    fn text(&self) -> String {
        format!("rank {}: its own loss is {:.6}: ", self.rank, self.loss)
    }
}

impl Golden {
    /// Formats a file of these losses, which [`Golden::find`] reads.
    ///
    /// # Errors
    /// The text of TOML's error for a number that it cannot hold.
    pub fn to_file(self) -> Result<String, String> {
        toml::to_string(&Goldens { golden: vec![self] }).map_err(|error| error.to_string())
    }

    /// Finds the golden losses of a workload: in the user's file if there is one, else built in.
    /// `workload` is its name.
    ///
    /// # Errors
    /// [`Error::Golden`] for a file that cannot be read or used.
    ///
    /// # Panics
    /// Never: a test has parsed the built-in ones.
    pub fn find(file: Option<&Path>, workload: &str, key: GoldenKey<'_>) -> Result<Found, Error> {
        let goldens = match file {
            None => parse(PRESETS).expect("a test has parsed it"),
            Some(path) => {
                let read = read_named_text(path, CONFIG_BYTES_MAX);
                let read = read.map_err(|error| error.source.to_string());
                let goldens = read.and_then(|text| parse(&text));
                goldens.map_err(|text| Error::Golden { path: path.to_owned(), text })?
            }
        };
        let is_of_workload =
            |golden: &Self| golden.workload_id == key.workload_id || golden.workload == workload;
        let candidates = goldens.golden.into_iter().filter(is_of_workload);
        let Some(golden) = candidates.min_by_key(|golden| key.differences(golden.key()).len())
        else {
            return Ok(Found::Nothing);
        };
        let differing = key.differences(golden.key());
        if differing.is_empty() {
            return Ok(Found::Golden(golden));
        }
        Ok(Found::NotComparable(differing.join(", ")))
    }

    /// Key of these losses.
    pub fn key(&self) -> GoldenKey<'_> {
        GoldenKey {
            workload_id: &self.workload_id,
            device: &self.device,
            tokens_per_step: self.tokens_per_step,
        }
    }

    /// Distance of a loss from the golden one; `None` where the step has none.
    pub fn difference(&self, step: u64, loss: f64) -> Option<f64> {
        let index = self.steps.binary_search(&step).ok()?;
        Some((loss - self.losses[index]).abs())
    }
}

impl GoldenKey<'_> {
    fn differences(&self, golden: GoldenKey<'_>) -> Vec<String> {
        let [tokens, golden_tokens] = [self, &golden].map(|key| key.tokens_per_step.to_string());
        differences(&[
            ["workload id", self.workload_id, golden.workload_id],
            ["device", self.device, golden.device],
            ["tokens per step", &tokens, &golden_tokens],
        ])
    }
}

fn parse(text: &str) -> Result<Goldens, String> {
    let goldens: Goldens = toml::from_str(text).map_err(|error| misfit(text, &error))?;
    for Golden { workload, steps, losses, exact, .. } in &goldens.golden {
        let mut all = exact.iter().map(|exact| &exact.losses).chain([losses]);
        if all.any(|losses| steps.len() != losses.len()) || !steps.is_sorted() {
            return Err(format!("{workload}: expected ascending steps, and a loss for each"));
        }
    }
    Ok(goldens)
}

/// Describes an unknown or missing key, or a value of the wrong type, with its line.
fn misfit(text: &str, error: &toml::de::Error) -> String {
    let line = |start: usize| text[..start].matches('\n').count() + 1;
    let line = error.span().map_or(String::new(), |span| format!("line {}: ", line(span.start)));
    format!("{line}{}", in_user_words(error.message()))
}

/// Distance from the golden loss beyond which the loss of a part of a batch is wrong.
const FAR_NATS: f64 = 2.0;

/// Compares losses as they arrive.
#[derive(Debug, Clone)]
pub struct GoldenWatch {
    golden: Golden,
    check: GoldenCheck,
    /// For each of the golden's exact losses, true while all losses have their bits.
    same_bits: Vec<bool>,
}

impl GoldenWatch {
    /// Creates a watch that compares with these losses.
    pub fn new(golden: Golden) -> Self {
        let tolerance_nats = golden.tolerance_nats;
        let check = GoldenCheck {
            compared: 0,
            worst_nats: 0.0,
            tolerance_nats,
            missed_step: None,
            same_bits: None,
            other_order: None,
        };
        let same_bits = vec![true; golden.exact.len()];
        Self { golden, check, same_bits }
    }

    /// Checks the loss of a step. `of_ranks` are the losses of the ranks' own parts of its batch:
    /// if only one is far away, its rank is the cause.
    ///
    /// # Errors
    /// [`GoldenMiss`] when the loss is too far from the golden one.
    pub fn observe(
        &mut self,
        step: u64,
        loss: f64,
        of_ranks: impl Iterator<Item = f64>,
    ) -> Result<(), GoldenMiss> {
        let Ok(index) = self.golden.steps.binary_search(&step) else { return Ok(()) };
        for (same, exact) in self.same_bits.iter_mut().zip(&self.golden.exact) {
            *same &= exact.losses[index].to_bits() == loss.to_bits();
        }
        let golden = self.golden.losses[index];
        let difference = (loss - golden).abs();
        let check = &mut self.check;
        check.compared += 1;
        check.worst_nats = check.worst_nats.max(difference);
        if difference <= check.tolerance_nats {
            return Ok(());
        }
        check.missed_step = Some(step);
        let is_far = |far: &FarRank| (far.loss - golden).abs() > FAR_NATS;
        let ranks = of_ranks.enumerate().map(|(rank, loss)| FarRank { rank, loss });
        let mut far = ranks.filter(is_far);
        let only = far.next().filter(|_| far.next().is_none());
        let tolerance_nats = check.tolerance_nats;
        Err(GoldenMiss { step, found: loss, golden, tolerance_nats, far: only })
    }

    /// Result of the comparison so far, for a run with this order of sums.
    pub fn check(&self, order: &SumOrder) -> GoldenCheck {
        let mut check = self.check.clone();
        let known = self.golden.exact.iter().map(|exact| order.differences(&exact.order));
        let nearest = known.zip(&self.same_bits).min_by_key(|(differing, _)| differing.len());
        match nearest {
            Some((differing, same)) if differing.is_empty() => {
                check.same_bits = Some(*same).filter(|_| check.compared > 0);
            }
            Some((differing, _)) => check.other_order = Some(differing.join(", ")),
            None => {}
        }
        check
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden() -> Golden {
        Golden {
            workload: "smoke".to_owned(),
            workload_id: "0123456789ab".to_owned(),
            device: "cpu".to_owned(),
            tokens_per_step: 4096,
            tolerance_nats: 0.01,
            steps: vec![1, 2, 5],
            losses: vec![5.5, 5.4, 5.0],
            exact: Vec::new(),
        }
    }

    fn order(topology: &str) -> SumOrder {
        SumOrder { device: "fma".to_owned(), topology: topology.to_owned(), nccl: None }
    }

    fn check(watch: &GoldenWatch) -> GoldenCheck {
        watch.check(&order("1 x 1"))
    }

    #[test]
    fn a_loss_beyond_the_tolerance_is_a_miss() {
        let mut watch = GoldenWatch::new(golden());
        for (step, loss) in [(1, 5.5), (2, 5.409), (3, 9.0), (4, 1.0)] {
            watch.observe(step, loss, [].into_iter()).unwrap();
        }
        assert_eq!((check(&watch).compared, check(&watch).missed_step), (2, None));
        assert!((check(&watch).worst_nats - 0.009).abs() < 1e-9);
        assert_eq!((check(&watch).same_bits, check(&watch).other_order), (None, None));
        let miss = watch.observe(5, 5.02, [5.1, 4.9].into_iter()).unwrap_err();
        assert_eq!((miss.step, miss.far), (5, None), "no rank is far away");
        assert_eq!(check(&watch).missed_step, Some(5));
        let miss = watch.observe(5, 9.0, [5.1, 12.9].into_iter()).unwrap_err();
        assert_eq!(miss.far, Some(FarRank { rank: 1, loss: 12.9 }));
        assert!(miss.to_string().starts_with("rank 1: its own loss is 12.900000: the loss of"));
        let both = watch.observe(5, 9.0, [9.1, 8.9].into_iter()).unwrap_err();
        assert_eq!(both.far, None);
    }

    #[test]
    fn bits_are_compared_with_those_of_the_same_order_of_sums() {
        let exact = |topology, losses: [f64; 3]| ExactLosses {
            losses: losses.to_vec(),
            order: order(topology),
        };
        let third = 1.0 / 3.0;
        let one = exact("1 x 1", [third, 5.4, 5.0]);
        let two = exact("1 x 2", [third.next_up(), 5.4, 5.0]);
        let mut golden = golden();
        golden.losses[0] = third;
        golden.exact = vec![one, two];
        let text = golden.clone().to_file().unwrap();
        assert_eq!(parse(&text).unwrap().golden, [golden.clone()], "no bit is lost in a file");
        let mut watch = GoldenWatch::new(golden);
        assert_eq!(check(&watch).same_bits, None, "nothing is compared yet");
        for (step, loss) in [(1, third), (2, 5.4), (3, 0.0)] {
            watch.observe(step, loss, [].into_iter()).unwrap();
        }
        assert_eq!(watch.check(&order("1 x 1")).same_bits, Some(true));
        assert_eq!(watch.check(&order("1 x 2")).same_bits, Some(false));
        let of_other = watch.check(&order("1 x 3"));
        let differing = "topology 1 x 3 (golden: 1 x 1)";
        assert_eq!((of_other.same_bits, of_other.other_order.as_deref()), (None, Some(differing)));
    }

    #[test]
    fn losses_with_another_key_are_not_comparable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("golden.toml");
        let of_others = Golden { device: "cuda".to_owned(), tokens_per_step: 1, ..golden() };
        let goldens = Goldens { golden: vec![of_others, golden()] };
        std::fs::write(&path, toml::to_string(&goldens).unwrap()).unwrap();
        let find = |workload, key| Golden::find(Some(&path), workload, key).unwrap();
        let differs = |text: &str| Found::NotComparable(text.to_owned());
        let own = golden();
        let key = own.key();
        assert_eq!(find("of another name", key), Found::Golden(golden()));
        let more = GoldenKey { tokens_per_step: 8192, ..key };
        assert_eq!(find("smoke", more), differs("tokens per step 8192 (golden: 4096)"));
        let on_cuda = GoldenKey { device: "cuda", ..key };
        assert_eq!(find("smoke", on_cuda), differs("tokens per step 4096 (golden: 1)"));
        let other = GoldenKey { workload_id: "ba9876543210", ..key };
        let text = "workload id ba9876543210 (golden: 0123456789ab)";
        assert_eq!(find("smoke", other), differs(text));
        assert_eq!(find("of another name", other), Found::Nothing);
    }

    #[test]
    fn built_in_losses_are_those_of_presets() {
        let goldens = parse(PRESETS).unwrap().golden;
        assert!(!goldens.is_empty());
        for golden in goldens {
            let of_key = Golden::find(None, &golden.workload, golden.key()).unwrap();
            assert_eq!(of_key, Found::Golden(golden.clone()), "no two have the same key");
        }
    }

    #[test]
    fn a_file_that_is_not_usable_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("golden.toml");
        let find = || {
            let key = GoldenKey { workload_id: "", device: "cpu", tokens_per_step: 1 };
            Golden::find(Some(&path), "", key).unwrap_err()
        };
        assert!(matches!(find(), Error::Golden { .. }), "there is none");
        let mut bad = golden();
        bad.losses.pop();
        std::fs::write(&path, toml::to_string(&Goldens { golden: vec![bad] }).unwrap()).unwrap();
        let text = find().to_string();
        assert!(text.contains("golden.toml: smoke: expected ascending steps"), "{text}");
    }
}
