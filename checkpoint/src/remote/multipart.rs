//! Objects that are uploaded in parts, by one process after another if need be.

use bytes::Bytes;
use object_store::multipart::PartId;
use serde::{Deserialize, Serialize};

use super::Remote;
use super::failure::is_absent;
use record::files::IoError;

/// Upload in parts: all data that another process needs to continue it.
///
/// A store keeps the parts, and counts them as storage, until the upload is completed or aborted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Multipart {
    /// Key of the object.
    pub key: String,
    /// The store's name of the upload.
    pub upload_id: String,
}

impl Remote {
    /// Starts an upload in parts. All parts but the last must have the same size, of 5 MiB or more;
    /// S3 allows 10,000 of them.
    ///
    /// # Errors
    /// When it cannot be started. If only the answer was lost, the store has an upload without
    /// parts, which a lifecycle rule of the bucket removes.
    pub fn create_multipart(&self, key: &str) -> Result<Multipart, IoError> {
        let upload_id = self.run(key, "start an upload", 0, async |location| {
            self.client.create_multipart(location).await
        })?;
        Ok(Multipart { key: key.to_owned(), upload_id })
    }

    /// Uploads a part, counted from 0, in any order. The same part may be uploaded again. Returns
    /// its id.
    ///
    /// # Errors
    /// When it cannot be uploaded.
    pub fn put_part(
        &self,
        upload: &Multipart,
        number: usize,
        bytes: impl Into<Bytes>,
    ) -> Result<String, IoError> {
        let bytes = bytes.into();
        let size = bytes.len() as u64;
        let part = self.run(&upload.key, "upload a part", size, async |location| {
            let body = bytes.clone().into();
            self.client.put_part(location, &upload.upload_id, number, body).await
        })?;
        Ok(part.content_id)
    }

    /// Makes the object of the parts, in this order, and replaces one that exists.
    ///
    /// # Errors
    /// When it cannot. If only the answer was lost, the object is there, and calling again is an
    /// error of kind [`NotFound`](std::io::ErrorKind::NotFound) on some stores: compare the object.
    pub fn complete_multipart(&self, upload: &Multipart, parts: &[String]) -> Result<(), IoError> {
        let part = |id: &String| PartId { content_id: id.clone() };
        let parts: Vec<_> = parts.iter().map(part).collect();
        self.run(&upload.key, "complete the upload", 0, async |location| {
            self.client.complete_multipart(location, &upload.upload_id, parts.clone()).await
        })?;
        Ok(())
    }

    /// Gives up an upload and frees its parts; one that does not exist is fine.
    ///
    /// # Errors
    /// When the store may still have it.
    pub fn abort_multipart(&self, upload: &Multipart) -> Result<(), IoError> {
        self.run(&upload.key, "abort the upload", 0, async |location| {
            match self.client.abort_multipart(location, &upload.upload_id).await {
                Err(error) if is_absent(&error) => Ok(()),
                aborted => aborted,
            }
        })
    }
}
