//! Calls, time and useful work of each op in a step, counted on request.
//!
//! Switched off, a meter costs one branch per op. Switched on, it reads the clock around each call
//! and changes nothing that is computed; on a CUDA device it records events around each call.
//! Counters are a fixed array, and events are created when it is switched on.

mod events;

use std::ops::AddAssign;
use std::time::{Duration, Instant};

use device::Device;
use device::cuda::{Error, Launched};
use events::EventClock;

/// The work of one or more calls.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Work {
    /// Multiplications and additions of matrix products.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        self.flops += other.flops;
        self.bytes += other.bytes;
    }
}

/// Role of an op in the model or in the update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Rows of the token table, and of the position table.
    Embedding,
    /// LayerNorm or RMSNorm.
    Norm,
    /// The product that computes queries, keys and values.
    AttentionIn,
    /// The rotation of queries and keys by their positions.
    Rope,
    /// Scores, softmax and the mixing of values.
    Attention,
    /// The product after attention.
    AttentionOut,
    /// The product into the feed-forward layer.
    Expand,
    /// GELU or SwiGLU, where it is no product's epilogue.
    Activation,
    /// The product out of the feed-forward layer.
    Contract,
    /// The product that computes logits.
    Head,
    /// Softmax and loss of the logits.
    CrossEntropy,
    /// The norm of all gradients.
    GradientNorm,
    /// The update.
    AdamW,
    /// The norms of the weights and of their last update.
    UpdateNorm,
}

impl Role {
    const ALL: [(Self, &'static str); 14] = [
        (Self::Embedding, "embedding"),
        (Self::Norm, "norm"),
        (Self::AttentionIn, "attn_qkv"),
        (Self::Rope, "rope"),
        (Self::Attention, "attention"),
        (Self::AttentionOut, "attn_out"),
        (Self::Expand, "mlp_up"),
        (Self::Activation, "activation"),
        (Self::Contract, "mlp_down"),
        (Self::Head, "head"),
        (Self::CrossEntropy, "cross-entropy"),
        (Self::GradientNorm, "gradient norm"),
        (Self::AdamW, "AdamW"),
        (Self::UpdateNorm, "update norm"),
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// Kind of a call within a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The forward pass.
    Forward,
    /// Repeats in the backward pass what forward computed and did not save.
    Recompute,
    /// The gradient of an input.
    Input,
    /// The gradient of a weight.
    Weight,
    /// The gradient of a bias.
    Bias,
    /// All gradients at once.
    Backward,
    /// The only call there is.
    Whole,
}

impl Kind {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Forward, "forward"),
        (Self::Recompute, "recompute"),
        (Self::Input, "dX"),
        (Self::Weight, "dW"),
        (Self::Bias, "db"),
        (Self::Backward, "backward"),
        (Self::Whole, ""),
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// Calls that are counted together.
pub type Op = (Role, Kind);

/// Totals of one op's calls.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Count {
    /// Number of calls.
    pub calls: u64,
    /// Total time of the calls.
    pub time: Duration,
    /// Their FLOPs and bytes.
    pub work: Work,
    /// What they gave to a CUDA device.
    pub launched: Launched,
}

/// Totals of every op.
type Counts = [[Count; Kind::ALL.len()]; Role::ALL.len()];

/// Counters of all ops on one device, on or off.
#[derive(Debug, Default)]
pub struct Meter {
    on: bool,
    counts: Counts,
    /// Where the ops run on a CUDA device.
    events: Option<EventClock>,
}

impl Meter {
    /// A meter of ops on a device, off.
    pub fn of(device: &Device) -> Self {
        let events = match device {
            Device::Host => None,
            Device::Cuda(device) => Some(EventClock::new(device)),
        };
        Self { events, ..Self::default() }
    }

    /// Starts counting from zero.
    pub fn start(&mut self) {
        self.on = true;
        self.counts = Counts::default();
        self.events.iter_mut().for_each(EventClock::prepare);
    }

    /// Stops counting, and keeps what was counted. Waits for the device.
    ///
    /// # Errors
    /// Those of the device's events: the times are incomplete.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.on = false;
        self.read_events();
        self.events.as_mut().and_then(EventClock::take_failure).map_or(Ok(()), Err)
    }

    /// Runs an op, and counts it when the meter is on. `work` is only called then.
    #[inline]
    pub fn time<R>(&mut self, op: Op, work: impl FnOnce() -> Work, run: impl FnOnce() -> R) -> R {
        if !self.on {
            return run();
        }
        let result = match &mut self.events {
            None => {
                let start = Instant::now();
                let result = run();
                self.count(op).time += start.elapsed();
                result
            }
            Some(_) => self.run_between_events(op, run),
        };
        let count = self.count(op);
        count.calls += 1;
        count.work += work();
        result
    }

    fn run_between_events<R>(&mut self, op: Op, run: impl FnOnce() -> R) -> R {
        if self.events.as_ref().is_some_and(EventClock::is_full) {
            self.read_events();
        }
        let Some(events) = &mut self.events else { return run() };
        events.begin();
        let before = events.device().launched();
        let result = run();
        events.end(op);
        let launched = events.device().launched().since(before);
        self.count(op).launched += launched;
        result
    }

    fn read_events(&mut self) {
        let Self { events, counts, .. } = self;
        if let Some(events) = events {
            events.drain(|(role, kind), time| counts[role as usize][kind as usize].time += time);
        }
    }

    fn count(&mut self, (role, kind): Op) -> &mut Count {
        &mut self.counts[role as usize][kind as usize]
    }

    /// The ops that were called at all, role by role.
    pub fn counts(&self) -> impl Iterator<Item = (Op, Count)> + '_ {
        let ops = Role::ALL
            .iter()
            .flat_map(|(role, _)| Kind::ALL.iter().map(move |(kind, _)| (*role, *kind)));
        let counts =
            ops.map(|(role, kind)| ((role, kind), self.counts[role as usize][kind as usize]));
        counts.filter(|(_, count)| count.calls > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_in_the_order_of_their_numbers() {
        for (index, (role, _)) in Role::ALL.iter().enumerate() {
            assert_eq!(*role as usize, index);
        }
        for (index, (kind, _)) in Kind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, index);
        }
    }

    #[test]
    fn counts_only_while_it_is_on() {
        let mut meter = Meter::default();
        let op = (Role::Norm, Kind::Forward);
        let call = |meter: &mut Meter| {
            let work = || Work { flops: 2.0, bytes: 3.0 };
            meter.time(op, work, || std::thread::sleep(Duration::from_millis(2)));
        };
        call(&mut meter);
        assert_eq!(meter.counts().count(), 0, "off at first");
        meter.start();
        call(&mut meter);
        call(&mut meter);
        meter.stop().unwrap();
        call(&mut meter);
        let (found, count) = meter.counts().next().unwrap();
        assert_eq!((found, count.calls), (op, 2));
        assert_eq!(count.work, Work { flops: 4.0, bytes: 6.0 });
        assert!(count.time >= Duration::from_millis(4), "{:?}", count.time);
        meter.start();
        assert_eq!(meter.counts().count(), 0, "begins from nothing");
        meter.time(op, Work::default, || ());
        assert_eq!(meter.counts().count(), 1);
    }

    #[test]
    fn work_is_not_computed_while_it_is_off() {
        let mut meter = Meter::default();
        assert_eq!(meter.time((Role::Head, Kind::Input), || unreachable!(), || 7), 7);
    }
}
