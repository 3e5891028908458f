//! The metrics endpoint of a node: a thread that reads the rings of its ranks and answers HTTP. It
//! does not depend on training, so it answers while a collective operation hangs.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use super::metrics::{self, BUCKETS_SECONDS};
use super::ring::{Reader, path};

/// Interval at which the rings are read; each holds the steps of some seconds.
const READ_INTERVAL: Duration = Duration::from_millis(200);

/// Content that the endpoint serves.
#[derive(Debug, Clone)]
pub(super) struct Served {
    /// Name of the run in the names of rings.
    pub(super) run: String,
    /// The ranks of this node.
    pub(super) ranks: Vec<usize>,
    /// Labels of `yardstick_run_info`.
    pub(super) info: Vec<(String, String)>,
    /// Time for which it answers after the end.
    pub(super) linger: Duration,
}

/// The running endpoint; dropping it ends it, after its linger.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) address: SocketAddr,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

/// Flags that the owner sets for the thread.
#[derive(Debug, Default)]
struct State {
    ends: AtomicBool,
    /// True if it answers only until the end.
    skip_linger: AtomicBool,
}

impl Endpoint {
    /// Listens, and starts the thread.
    ///
    /// # Errors
    /// When the address cannot be used.
    pub(super) fn start(address: SocketAddr, served: Served) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address)
            .map_err(|error| std::io::Error::new(error.kind(), format!("{address}: {error}")))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let recorder = PrometheusBuilder::new()
            .set_buckets(&BUCKETS_SECONDS)
            .map_err(std::io::Error::other)?
            .build_recorder();
        let state = Arc::new(State::default());
        let reader_state = Arc::clone(&state);
        let thread = device::threads::spawn("prometheus", move || {
            let handle = recorder.handle();
            let serving = async move {
                let reading = read_rings(recorder, &served, &reader_state);
                tokio::select! {
                    result = answer(listener, handle) => {
                        if let Err(error) = result {
                            tracing::warn!("the Prometheus endpoint ended: {error}");
                        }
                    }
                    () = reading => {}
                }
            };
            runtime.block_on(serving);
        })?;
        Ok(Self { address, state, thread: Some(thread) })
    }

    /// Skips the linger after the end: a process that has to stop has other uses for its time.
    pub(super) fn skip_linger(&self) {
        self.state.skip_linger.store(true, Ordering::Relaxed);
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

async fn answer(listener: TcpListener, handle: PrometheusHandle) -> std::io::Result<()> {
    let page = move || {
        let text = handle.render();
        async move { ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text) }
    };
    let routes = Router::new().route("/metrics", get(page));
    axum::serve(tokio::net::TcpListener::from_std(listener)?, routes).await
}

/// Reads the rings until the end and its linger are over.
async fn read_rings(recorder: PrometheusRecorder, served: &Served, state: &State) {
    let mut rings: Vec<(String, Reader)> = (0..)
        .zip(&served.ranks)
        .map(|(local_rank, rank)| (rank.to_string(), Reader::new(path(&served.run, local_rank))))
        .collect();
    metrics::with(&recorder, || {
        metrics::describe();
        metrics::info(&served.info);
    });
    let handle = recorder.handle();
    let mut end: Option<Instant> = None;
    loop {
        let is_last = state.ends.load(Ordering::Relaxed);
        metrics::with(&recorder, || {
            for (rank, ring) in &mut rings {
                let lost = ring.read(|event| metrics::take(rank, event));
                metrics::lost(rank, lost);
            }
        });
        handle.run_upkeep();
        let skip_linger = state.skip_linger.load(Ordering::Relaxed);
        let linger = if skip_linger { Duration::ZERO } else { served.linger };
        if is_last && *end.get_or_insert(Instant::now() + linger) <= Instant::now() {
            return;
        }
        tokio::time::sleep(READ_INTERVAL).await;
    }
}
