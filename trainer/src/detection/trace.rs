//! What steps took two ranks of a real run by themselves, recorded by
//! `scripts/record-step-times.sh`, and drawn again in blocks.

use record::Random;

/// Steps that are drawn together, so that each still depends on the one before.
const BLOCK: usize = 10;

/// Steps at the start of a run that are left out, as in a record.
const COLD: usize = 2;

/// Ranks of a recorded run.
const RANKS: usize = 2;

/// Milliseconds of a step on one rank, without waiting for others.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct OwnMs {
    pub(crate) compute: f64,
    pub(crate) data: f64,
    pub(crate) host: f64,
}

impl OwnMs {
    pub(crate) fn total(self) -> f64 {
        self.compute + self.data + self.host
    }
}

/// Runs of two ranks on one machine.
#[derive(Debug)]
pub(crate) struct Trace {
    runs: Vec<Vec<[OwnMs; RANKS]>>,
}

impl Trace {
    /// While little else ran: at most a quarter of the processors' time.
    pub(crate) fn quiet() -> Self {
        Self::parse(include_str!("traces/quiet.txt"))
    }

    /// While compilers used the same processors.
    pub(crate) fn noisy() -> Self {
        Self::parse(include_str!("traces/noisy.txt"))
    }

    fn parse(text: &str) -> Self {
        let runs = text.trim_end().split("\n\n");
        let steps = |run: &str| run.lines().skip(COLD).map(parse_step).collect();
        Self { runs: runs.map(steps).collect() }
    }

    /// The steps of a job, of each rank: every two ranks are a node, all as in the same run. Which
    /// of both recorded ranks is first is drawn too, as one may have been slower.
    pub(crate) fn job(&self, ranks: usize, steps: usize, random: &mut Random) -> Vec<Vec<OwnMs>> {
        let mut job = vec![Vec::with_capacity(ranks); steps];
        let run = &self.runs[random.below(self.runs.len())];
        for _ in 0..ranks / RANKS {
            let first = random.below(RANKS);
            let mut drawn = Vec::with_capacity(steps + BLOCK);
            while drawn.len() < steps {
                let start = random.below(run.len() - BLOCK + 1);
                drawn.extend_from_slice(&run[start..start + BLOCK]);
            }
            for (step, both) in job.iter_mut().zip(drawn) {
                step.extend([both[first], both[1 - first]]);
            }
        }
        job
    }
}

fn parse_step(line: &str) -> [OwnMs; RANKS] {
    let ms = |text: &str| text.parse::<f64>().expect("microseconds") / 1e3;
    let times: Vec<f64> = line.split(' ').map(ms).collect();
    assert_eq!(times.len(), 3 * RANKS, "{line:?}");
    let rank = |first: usize| OwnMs {
        compute: times[first],
        data: times[first + 1],
        host: times[first + 2],
    };
    [rank(0), rank(3)]
}
