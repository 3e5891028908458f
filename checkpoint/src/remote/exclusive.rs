//! Objects that at most one of several writers creates.

use bytes::Bytes;
use object_store::PutMode;

use super::Remote;
use super::failure::{is_failed_condition, is_refused, to_io};
use record::files::IoError;

/// Outcome of an exclusive put.
#[derive(Debug)]
#[must_use]
pub enum ExclusivePut {
    /// The object did not exist and was created.
    Created,
    /// There is an object of this key. It may be of this very call, if a first answer was lost:
    /// compare its bytes.
    Exists,
    /// The object may have been created or not: read it, and try again if it is not there.
    InDoubt(IoError),
}

impl Remote {
    /// Creates an object that must not exist (`If-None-Match: *`).
    ///
    /// # Errors
    /// When the store certainly has not created it.
    pub fn put_exclusive(
        &self,
        key: &str,
        bytes: impl Into<Bytes>,
    ) -> Result<ExclusivePut, IoError> {
        let bytes = bytes.into();
        let location = self.location(key)?;
        let answer = self.run_raw(bytes.len() as u64, async || {
            let put = async || {
                let body = bytes.clone().into();
                self.client.put_opts(&location, body, PutMode::Create.into()).await
            };
            self.repeat_conflicts(put).await
        });
        let url = self.url(key);
        let failed = IoError::at(&url, "create");
        match answer {
            Ok(Ok(_)) => Ok(ExclusivePut::Created),
            Ok(Err(error)) if is_failed_condition(&error) => Ok(ExclusivePut::Exists),
            Ok(Err(error)) if is_refused(&error) => Err(failed(to_io(error))),
            Ok(Err(error)) => Ok(ExclusivePut::InDoubt(failed(to_io(error)))),
            Err(error) => Ok(ExclusivePut::InDoubt(failed(error))),
        }
    }

    /// Returns whether the store honours the condition of [`Remote::put_exclusive`], tried on an
    /// object of this key, which nothing else may use. Some stores accept the header and ignore it:
    /// there, two writers would both get the answer that they created an object.
    ///
    /// # Errors
    /// When the store cannot be written to.
    pub fn honours_exclusive_put(&self, probe_key: &str) -> Result<bool, IoError> {
        const PROBE_BYTES_MAX: u64 = 1 << 10;
        self.put(probe_key, "first")?;
        let second = self.put_exclusive(probe_key, "second")?;
        let kept = self.read(probe_key, PROBE_BYTES_MAX)? == "first";
        self.delete(probe_key)?;
        match second {
            ExclusivePut::Exists => Ok(kept),
            ExclusivePut::Created => Ok(false),
            ExclusivePut::InDoubt(error) => Err(error),
        }
    }
}
