// Messages: those of a group all progress together. A send is over when all of it is received, so
// that ranks which rely on buffers of NCCL wait for each other, and are found.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "../emulated_cuda.h"
#include "communicator.h"
#include "reduce.h"

namespace emulated {

// One end of a message, whose number counts those from its sender to its receiver.
class Transfer {
public:
    Transfer(const Collective& message, Segment& segment, int rank, uint64_t number)
        : message(message),
          sends(message.call.kind == Kind::Send),
          from(sends ? rank : message.call.root),
          to(sends ? message.call.root : rank),
          number(number),
          bytes(message.call.count * element_bytes(message.call.type)),
          mailbox(segment.mailbox(from, to)),
          chunk(segment.message_chunk(from, to)) {}

    bool is_over() const { return over; }
    // Whether this end has come to the message, and the other has not.
    bool is_alone() const { return announced && other() < number; }
    int peer() const { return message.call.root; }
    const char* name() const { return name_of(message.call.kind); }

    // Does what is possible now; returns whether there was anything.
    bool advance() {
        if (over || !announce() || is_alone()) {
            return false;
        }
        compare();
        return sends ? write() : read();
    }

private:
    uint64_t other() const { return sends ? mailbox.receiving : mailbox.sending; }

    // Behind the messages before.
    bool announce() {
        if (!announced && mailbox.completed == number - 1) {
            (sends ? mailbox.sent : mailbox.received) = message.call;
            (sends ? mailbox.sending : mailbox.receiving) = number;
            announced = true;
        }
        return announced;
    }

    void compare() const {
        const Call sent = mailbox.sent, received = mailbox.received;
        if (mailbox.completed < number &&
            (sent.count != received.count || sent.type != received.type)) {
            emulated_cuda_violation(
                "NCCL: rank %d calls ncclSend of %zu elements (type %d) to rank %d, which calls "
                "ncclRecv of %zu elements (type %d): message %zu of the pair",
                from, sent.count, sent.type, to, received.count, received.type, size_t(number));
        }
    }

    size_t next() const { return std::min(bytes - done, MESSAGE_CHUNK_BYTES); }

    bool write() {
        if (done < bytes && mailbox.written == mailbox.read) {
            memcpy(chunk, static_cast<const char*>(message.send) + done, next());
            done += next();
            mailbox.written++;
            return true;
        }
        over = done == bytes && mailbox.completed >= number;
        return over;
    }

    bool read() {
        if (done < bytes) {
            if (mailbox.written == mailbox.read) {
                return false;
            }
            memcpy(static_cast<char*>(message.receive) + done, chunk, next());
            done += next();
            mailbox.read++;
        }
        if (done == bytes) {
            mailbox.completed = number;
            over = true;
        }
        return true;
    }

    const Collective& message;
    const bool sends;
    const int from;
    const int to;
    const uint64_t number;
    const size_t bytes;
    Mailbox& mailbox;
    char* const chunk;
    bool announced = false;
    size_t done = 0;
    bool over = false;
};

void Communicator::run_messages(const Work& messages) {
    std::vector<Transfer> transfers;
    for (const Collective& message : messages) {
        const bool sends = message.call.kind == Kind::Send;
        uint64_t& count = (sends ? sent : received)[size_t(message.call.root)];
        transfers.emplace_back(message, *segment, rank, ++count);
    }
    Waiting waiting(*order, *segment, ranks, rank);
    bool are_over = false;
    while (!are_over && !aborted) {
        bool advanced = false;
        are_over = true;
        const char* name = "";
        std::vector<int> missing;
        for (Transfer& transfer : transfers) {
            advanced |= transfer.advance();
            are_over &= transfer.is_over();
            if (!transfer.is_over() && transfer.is_alone()) {
                missing.push_back(transfer.peer());
                name = transfer.name();
            }
        }
        waiting.update(missing, name);
        if (!advanced) {
            usleep(50);
        }
    }
}

}  // namespace emulated
