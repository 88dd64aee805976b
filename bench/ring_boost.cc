// SPDX-License-Identifier: Apache-2.0
/*
 * boost::lockfree::spsc_queue, with its size fixed, so that it lies in shared memory as it is. It
 * copies a whole message from its source, which the table has ready, number and all; a reader looks
 * at single messages in place and takes batches out by copy: push and pop of arrays.
 */
#include "ring_play.h"

#if defined(__has_include)
#if __has_include(<boost/lockfree/spsc_queue.hpp>)
#include <boost/lockfree/spsc_queue.hpp>
#include <new>
#define HAVE_BOOST
#endif
#endif

#ifdef HAVE_BOOST
namespace
{

template <uint32_t size> struct message {
	ring_head head;
	uint64_t payload[size / 8];
} __attribute__((aligned(64)));

template <uint32_t size> struct channel {
	typedef boost::lockfree::spsc_queue<message<size>, boost::lockfree::capacity<SLOTS(size)>>
		queue;
	static queue *of[2];
};
template <uint32_t size> typename channel<size>::queue *channel<size>::of[2];

template <uint32_t size> void open()
{
	typedef typename channel<size>::queue queue;
	const size_t bytes = (sizeof(queue) + APART + 4095) / 4096 * 4096;
	char *mem = static_cast<char *>(ring_memory(2 * bytes));
	queue *q = new (mem) queue;

	q->push(message<size>()); /* its address is that of the first slot */
	const size_t slots = size_t(reinterpret_cast<char *>(&q->front()) - mem);

	for (size_t i = 0; i < 2; i++)
		channel<size>::of[i] = new (mem + i * bytes + APART - slots) queue;
}

template <uint32_t size> struct looker {
	const ring_side *side;
	uint64_t i;
	void operator()(const message<size> &m) const
	{
		if (!message_good(side, &m.head, i, size))
			ring_broken("boost", "not the message that was sent");
	}
};

template <uint32_t size> INLINE uint64_t sender(ring_side *side, uint64_t i, uint64_t want)
{
	typename channel<size>::queue &q = *channel<size>::of[side->id];
	message<size> *m = reinterpret_cast<message<size> *>(source_of(side, i, size));
	uint64_t n, k, room = ENTRIES(size) - entry_of(i, size);

	if (want == 1)
		n = q.push(*m);
	else
		n = q.push(m, want < room ? want : room);
	/* The numbers of the next time. */
	for (k = 0; k < n; k++)
		m[k].head.seq += ENTRIES(size);
	return n;
}

template <uint32_t size> INLINE uint64_t receiver(ring_side *side, uint64_t i, uint64_t want)
{
	static message<size> batch[RING_BATCH];
	typename channel<size>::queue &q = *channel<size>::of[!side->id];
	looker<size> look = { side, i };
	uint64_t n;

	if (want == 1)
		return q.consume_one(look);
	n = q.pop(batch, want);
	for (; look.i < i + n; look.i++)
		look(batch[look.i - i]);
	return n;
}

#define boost_send(side, i, want, size) sender<size>(side, i, want)
#define boost_receive(side, i, want, size) receiver<size>(side, i, want)

#define PLAY(size)                                \
	RING_PLAY_RTT(boost, size)                \
	RING_PLAY_STREAM(boost, stream, size, 1u) \
	RING_PLAY_STREAM(boost, batched, size, RING_BATCH)
RING_SIZES(PLAY)

#define OPEN(size) open<size>();
const char *setup()
{
	RING_SIZES(OPEN)
	return nullptr;
}

} // namespace

#define RTT(size) boost_rtt_##size,
#define STREAM(size) boost_stream_##size,
#define BATCHED(size) boost_batched_##size,
#define TABLES                                       \
	{ RING_SIZES(RTT) }, { RING_SIZES(STREAM) }, \
	{                                            \
		RING_SIZES(BATCHED)                  \
	}
#else
#define TABLES \
	{      \
	}
static const char *setup()
{
	return "boost/lockfree/spsc_queue.hpp was not found at build time (Debian: libboost-dev)";
}
#endif

const ring_impl ring_boost = { "boost", 1, setup, { TABLES }, nullptr };
