//! Workers over open indexes, and the queue that hands them queries.
const std = @import("std");
const io = @import("io");
const layout = @import("layout");
const base = @import("base");
const builtin = @import("builtin");
const index = @import("index");
const job_file = @import("job.zig");
const Shared = @import("shared.zig").Shared;
const segments_file = @import("segments.zig");
const parameters = @import("parameters.zig");
const File = @import("shared.zig").File;
const slot_file = @import("slot.zig");
const RecentPages = @import("pages.zig").RecentPages;
const Direct = slot_file.Direct;
const Segment = job_file.Segment;
const Job = job_file.Job;
const Queue = job_file.Queue;
const assert = std.debug.assert;
const SegmentSearch = job_file.SegmentSearch;
const Arrived = slot_file.Arrived;
const Slot = slot_file.Slot;

pub const Options = struct {
    threads: u32,
    /// Queries in flight a worker (B); at most so many where `adaptive`.
    queries_in_flight: u32 = queries_in_flight_default,
    /// B follows from what is measured while running (live_limit).
    adaptive: bool = false,
    queue_depth: u32 = queue_depth_default,
    /// pages.bin and vectors.bin of segments that are attached without descriptors; open until `deinit`.
    file: ?std.posix.fd_t = null,
    vectors_file: ?std.posix.fd_t = null,
    simulated_seed: u64 = 0,
    simulated_faults: u32 = 0,

    /// Buffers fit the first segment, others of its folder, and all that need no larger ones.
    pub const Room = struct {
        page_sizes: [io.file_count]u32,
        /// Queries hold on to pages.
        holds_pages: bool,

        pub fn of(shared: *const Shared) Room {
            const reader = shared.reader;
            // If it stores none, others may: untouched buffers take no memory.
            const vectors: layout.vectors.Geometry = .of(reader.header.dim_in * @as(u32, @intCast(reader.dtype.bytes())), 0);
            return .{ .page_sizes = .{ @max(reader.pages_header.page_size, index.page_size_most(reader.header.dim_in)), vectors.page_size }, .holds_pages = shared.plan == .links_on_disk };
        }

        fn holds(self: Room, other: Room) bool {
            for (self.page_sizes, other.page_sizes) |own, wanted| if (wanted > own) return false;
            return self.holds_pages or !other.holds_pages;
        }
    };
};

pub const queries_in_flight_default = 16;
pub const queue_depth_default = 64;

pub fn Engine(comptime Device: type) type {
    io.check_device(Device);
    return struct {
        const Self = @This();

        allocator: std.mem.Allocator,
        queue: Queue = .{},
        workers: []Worker(Device),
        room: Options.Room,
        slots_each: u32,
        direct: Direct,
        segment_next: std.atomic.Value(u32) = .init(0),
        /// One of the segments stores vectors.
        reads_vectors: std.atomic.Value(bool) = .init(false),

        pub const InitError = io.InitError || error{ThreadFailed};

        /// For `first` and other segments that need no larger buffers; none of them is attached yet.
        pub fn init(allocator: std.mem.Allocator, first: *const Shared, options: Options) InitError!*Self {
            assert(options.threads > 0 and options.queries_in_flight > 0);
            const self = try allocator.create(Self);
            errdefer allocator.destroy(self);
            const workers = try allocator.alloc(Worker(Device), options.threads);
            errdefer allocator.free(workers);
            self.* = .{ .allocator = allocator, .workers = workers, .room = .of(first), .slots_each = options.queries_in_flight, .direct = try .init(allocator, options.threads, options.threads * options.queries_in_flight) };
            errdefer self.direct.deinit(allocator);
            var made: usize = 0;
            errdefer for (workers[0..made]) |*worker| worker.deinit(allocator);
            for (workers, 0..) |*worker, i| {
                var own = options;
                own.simulated_seed +%= i;
                try worker.init(allocator, i, self.room, &self.queue, own);
                made += 1;
            }
            var started: usize = 0;
            errdefer {
                self.queue.close();
                for (workers[0..started]) |*worker| worker.thread.join();
            }
            const processor = take_processors(options.threads);
            for (workers, 0..) |*worker, i| {
                worker.processor = processor +% @as(u32, @intCast(i));
                worker.thread = std.Thread.spawn(.{ .stack_size = 512 * 1024 }, Worker(Device).run, .{worker}) catch return error.ThreadFailed;
                started += 1;
            }
            return self;
        }

        /// Whether the buffers are large enough for another segment.
        pub fn has_room_for(self: *const Self, shared: *const Shared) bool {
            return self.room.holds(.of(shared));
        }

        /// An index that these workers search from now on, until it is detached. `files` as in `Segment`.
        pub fn attach(self: *Self, shared: *const Shared, files: [io.file_count]?std.posix.fd_t) error{ OutOfMemory, TooLarge }!*Segment {
            if (!self.has_room_for(shared)) return error.TooLarge;
            const segment = try self.allocator.create(Segment);
            errdefer self.allocator.destroy(segment);
            if (shared.reader.vectors != null) self.reads_vectors.store(true, .monotonic);
            const number: u31 = @truncate(self.segment_next.fetchAdd(1, .monotonic));
            segment.* = try .init(shared, files, number, self.workers.len * self.slots_each + Direct.count_of(@intCast(self.workers.len)));
            return segment;
        }

        /// Calls over it end with `.closed`; returns when they have.
        pub fn detach(self: *Self, segment: *Segment) void {
            segment.close();
            segment.deinit();
            self.allocator.destroy(segment);
        }

        /// No segment is attached any more. Returns when all workers have stopped.
        pub fn deinit(self: *Self) void {
            self.queue.close();
            for (self.workers) |*worker| worker.thread.join();
            for (self.workers) |*worker| worker.deinit(self.allocator);
            self.allocator.free(self.workers);
            self.direct.deinit(self.allocator);
            self.allocator.destroy(self);
        }

        pub fn memory_bytes(self: *const Self) u64 {
            var sum: u64 = 0;
            for (self.workers) |*worker| sum += worker.memory_bytes(self.reads_vectors.load(.monotonic));
            return sum;
        }

        /// Answers the job on this thread where it takes no reads; false where it is to be submitted, and nothing was done.
        pub fn answer(self: *Self, job: *Job) bool {
            if (!Direct.may_answer(job) or !job.enter()) return false;
            defer job.leave();
            return self.direct.answer(job);
        }

        /// False when a segment, or all of it, is being closed: the job was not taken.
        pub fn submit(self: *Self, job: *Job) bool {
            if (!job.enter()) return false;
            if (self.queue.push(job)) return true;
            job.leave();
            return false;
        }

        /// The same for a job that answers queries of another, which has entered: it is always taken.
        pub fn submit_part(self: *Self, job: *Job) void {
            job.enter_again();
            const taken = self.queue.push(job);
            assert(taken); // the queue is closed when no segment is attached
        }
    };
}

// ---- workers ----
//
// A worker is a thread with a device of its own that interleaves queries, so that none waits for another. A page on its
// way for one query is not read again for another.

/// An adaptive worker takes as many whatever it has measured.
const live_min = 4;
/// Reads that a query with links on disk may have on their way beside the pages that it holds.
const beam_reads_max = base.limits.ranges.beam_width.max;
/// Slots of the cache that a worker keeps free for what is being read.
const slots_ahead = 32;
/// Calls whose end a worker keeps to itself at most, while other queries wait for it.
const ended_max = 4;
/// The time that a worker with one query looks for its reads before it sleeps.
const awake_us = 300;

fn Worker(comptime Device: type) type {
    return struct {
        const Self = @This();

        queue: *Queue,
        device: Device,
        /// Buffers for pages of each file. Their numbers are those of `reads`, first all of the first pool.
        pools: [io.file_count]Pool,
        reads: []io.Read,
        /// Of each buffer the segment whose page is read into it.
        sources: []*Segment,
        /// Users of a buffer: the read into it, and every query that holds its page.
        users: []u32,
        in_flight: InFlight,
        slots: []Slot,
        /// Room for what a delta finds.
        hits: []job_file.Delta.Hit,
        /// Of a segment's subsearches the one of the first slot.
        first_place: usize,
        /// The slot that asked for pages last.
        asked_last: u32 = 0,
        /// Slots without a query; slots whose query can go on.
        idle: Stack,
        ready: Stack,
        done: []*io.Read,
        adaptive: bool,
        /// Queries that may be in flight.
        live_max: u32,
        /// Moving means: from asking for pages to the first of them, and of the work between two rounds.
        wait_us: f32 = 0,
        work_us: f32 = 0,
        /// Jobs whose last query has ended here, not reported yet.
        ended: ?*Job = null,
        ended_count: u32 = 0,
        thread: std.Thread = undefined,
        processor: u32 = 0,

        pub fn init(self: *Self, allocator: std.mem.Allocator, number: usize, room: Options.Room, queue: *Queue, options: Options) io.InitError!void {
            const depth = options.queue_depth;
            const slot_count = options.queries_in_flight;
            // With links on disk queries hold on to pages: enough for all of them, so that none waits for another.
            const page_buffers: u32 = if (room.holds_pages)
                slot_count * (RecentPages.max + beam_reads_max)
            else
                2 * depth;
            const buffer_count = page_buffers + 2 * depth;
            const reads = try base.alloc_untouched(allocator, io.Read, buffer_count);
            errdefer base.free_untouched(allocator, reads);
            var pages = try Pool.init(allocator, 0, reads[0..page_buffers], 0, room.page_sizes[0], slot_count);
            errdefer pages.deinit(allocator);
            var vectors = try Pool.init(allocator, 1, reads[page_buffers..], page_buffers, room.page_sizes[1], slot_count);
            errdefer vectors.deinit(allocator);
            var device = try Device.init(allocator, .{
                .file = options.file,
                .second_file = options.vectors_file,
                .queue_depth = depth,
                .buffers = pages.memory.bytes,
                .simulated_seed = options.simulated_seed,
                .simulated_faults = options.simulated_faults,
            });
            errdefer device.deinit();
            const users = try base.alloc_untouched(allocator, u32, buffer_count);
            errdefer base.free_untouched(allocator, users);
            @memset(users, 0);
            const sources = try base.alloc_untouched(allocator, *Segment, buffer_count);
            errdefer base.free_untouched(allocator, sources);
            var in_flight = try InFlight.init(allocator, buffer_count, slot_count);
            errdefer in_flight.deinit(allocator);
            const done = try base.alloc_untouched(allocator, *io.Read, buffer_count);
            errdefer base.free_untouched(allocator, done);
            var idle = try Stack.init(allocator, slot_count);
            errdefer idle.deinit(allocator);
            var ready = try Stack.init(allocator, slot_count);
            errdefer ready.deinit(allocator);
            const slots = try base.alloc_untouched(allocator, Slot, slot_count);
            errdefer base.free_untouched(allocator, slots);
            const hits = try base.alloc_untouched(allocator, job_file.Delta.Hit, parameters.k_max);
            errdefer base.free_untouched(allocator, hits);
            for (slots, 0..) |*slot, i| {
                slot.* = .{};
                idle.push(@intCast(slot_count - 1 - i));
            }
            self.* = .{
                .queue = queue,
                .device = device,
                .pools = .{ pages, vectors },
                .reads = reads,
                .sources = sources,
                .users = users,
                .in_flight = in_flight,
                .slots = slots,
                .hits = hits,
                .first_place = number * slot_count,
                .idle = idle,
                .ready = ready,
                .done = done,
                .adaptive = options.adaptive,
                .live_max = slot_count,
            };
        }

        pub fn deinit(self: *Self, allocator: std.mem.Allocator) void {
            for (&self.pools) |*pool| assert(pool.free.len == pool.buffer_count);
            self.device.deinit();
            base.free_untouched(allocator, self.hits);
            base.free_untouched(allocator, self.slots);
            self.idle.deinit(allocator);
            self.ready.deinit(allocator);
            base.free_untouched(allocator, self.done);
            self.in_flight.deinit(allocator);
            base.free_untouched(allocator, self.users);
            base.free_untouched(allocator, self.sources);
            for (&self.pools) |*pool| pool.deinit(allocator);
            base.free_untouched(allocator, self.reads);
        }

        pub fn memory_bytes(self: *const Self, reads_vectors: bool) u64 {
            const vectors = if (reads_vectors) self.pools[1].memory.bytes.len else 0;
            return self.pools[0].memory.bytes.len + vectors + self.slots.len * @sizeOf(Slot) + std.mem.sliceAsBytes(self.hits).len + self.in_flight.memory_bytes();
        }

        pub fn run(self: *Self) void {
            pin_to_processor(self.processor);
            while (true) {
                // One query at a time enters between two turns, so that workers share what waits evenly.
                if (self.has_room()) {
                    const nothing_live = self.idle.len == self.slots.len;
                    if (nothing_live) self.report_ended(); // before a wait: their callers may ask again
                    if (self.queue.take(nothing_live)) |task| {
                        self.begin(task);
                    } else if (nothing_live) return; // closed and empty
                }
                while (self.ready.pop()) |number| {
                    self.slots[number].ready = false;
                    self.advance(number);
                }
                self.device.flush();
                const nothing_to_do = self.ready.len == 0 and (!self.has_room() or !self.queue.waiting.load(.acquire));
                // While reads are on their way the cache's clock runs ahead of what they will bring.
                if (nothing_to_do) self.sweep();
                // To wake a caller costs both processors: where queries wait anyway, several are woken one after the other.
                if (nothing_to_do or self.ended_count >= ended_max or !self.queue.waiting.load(.acquire)) self.report_ended();
                const done_count = if (nothing_to_do) self.wait() else self.device.poll(self.done, .none);
                for (self.done[0..done_count]) |read| self.arrive(read);
                self.feed_starved();
            }
        }

        fn sweep(self: *Self) void {
            const slot = &self.slots[self.asked_last];
            if (slot.in_flight == 0) return;
            for (slot.job.segments) |one| if (one.segment.shared.cache) |cache| {
                _ = cache.sweep(slots_ahead);
            };
        }

        fn subsearches_of(self: *const Self, number: u32) segments_file.SegmentSearches {
            return .{ .segments = self.slots[number].job.segments, .place = self.first_place + number };
        }

        /// The subsearch that a page in this buffer is for.
        fn subsearch_of(self: *const Self, buffer: u32, number: u32) *SegmentSearch {
            return &self.sources[buffer].searches[self.first_place + number];
        }

        /// Until a read is done, or there is something else to do. A query that is alone is waited for awake at first,
        /// unless the drive is known to be slow: to sleep and to be woken takes longer than a fast drive does. Whoever
        /// else wants the processor, a caller above all, gets it meanwhile.
        fn wait(self: *Self) usize {
            const alone = self.slots.len - self.idle.len == 1 and self.device.in_flight() > 0;
            if (Device.kind == .uring and alone and self.wait_us < awake_us) {
                const begin_us = base.nowMicros();
                while (base.nowMicros() - begin_us < awake_us) {
                    const count = self.device.poll(self.done, .none);
                    if (count > 0) return count;
                    if (self.queue.waiting.load(.acquire)) return 0;
                    std.Thread.yield() catch {};
                }
            }
            return self.device.poll(self.done, .one);
        }

        fn has_room(self: *const Self) bool {
            return self.slots.len - self.idle.len < self.live_max;
        }

        fn begin(self: *Self, task: job_file.Task) void {
            const number = self.idle.pop().?;
            const slot = &self.slots[number];
            const job = task.job;
            slot.* = .{ .job = job, .query = task.query, .begin_us = base.nowMicros() };
            const subsearches = self.subsearches_of(number);
            subsearches.prepare();
            if (job.is_canceled()) { // what was never begun costs nothing
                slot.outcome = .canceled;
                for (0..subsearches.count()) |i| subsearches.at(i).search.cost = .{};
                return self.make_ready(number);
            }
            slot.start(subsearches);
            self.make_ready(number);
        }

        fn make_ready(self: *Self, number: u32) void {
            const slot = &self.slots[number];
            if (slot.ready) return;
            slot.ready = true;
            self.ready.push(number);
        }

        /// Runs a slot whose pages have all arrived (or that has not wanted any yet) until it wants more, or ends.
        fn advance(self: *Self, number: u32) void {
            const slot = &self.slots[number];
            if (slot.outcome == .ok and !slot.ended) {
                const begin_us = base.nowMicros();
                slot.check_time(begin_us);
                if (slot.outcome == .ok) {
                    const step = segments_file.step(self.subsearches_of(number), slot.job.k());
                    self.take_released(number);
                    if (step) |want| {
                        slot.ended = want == .done;
                        if (!slot.ended) {
                            const wants = self.wants_pages(number);
                            self.asked_last = number;
                            self.ask(number);
                            const waits = slot.in_flight > 0 or slot.starved;
                            slot.rounds += @intFromBool(wants and waits);
                            slot.asked_us = base.nowMicros();
                            self.measure(&self.work_us, slot.asked_us - begin_us);
                            if (wants and !waits) self.go_on_without_reads(number);
                            return;
                        }
                    } else |_| slot.outcome = .corrupt;
                }
            }
            if (slot.in_flight == 0) self.finish(number);
        }

        fn measure(self: *Self, mean: *f32, sample_us: u64) void {
            mean.* += (@as(f32, @floatFromInt(sample_us)) - mean.*) / 64;
            if (self.adaptive) self.live_max = live_limit(self.wait_us, self.work_us, @intCast(self.slots.len));
        }

        fn take_released(self: *Self, number: u32) void {
            const subsearches = self.subsearches_of(number);
            for (0..subsearches.count()) |i| {
                for (subsearches.at(i).search.released.take()) |buffer| self.put_back(buffer);
            }
        }

        fn wants_pages(self: *const Self, number: u32) bool {
            const subsearches = self.subsearches_of(number);
            for (0..subsearches.count()) |i| if (!subsearches.at(i).search.round.is_asked()) return true;
            return false;
        }

        /// Pages that are on their way for another query are waited for, the others are read.
        fn ask(self: *Self, number: u32) void {
            const subsearches = self.subsearches_of(number);
            for (subsearches.segments, 0..) |*one, i| {
                if (!self.ask_of(number, one.segment, subsearches.at(i))) return;
            }
        }

        /// The page cache had all that was wanted: that was no round of reads.
        fn go_on_without_reads(self: *Self, number: u32) void {
            const subsearches = self.subsearches_of(number);
            if (subsearches.count() == 1) subsearches.at(0).search.end_round_without_reads();
            self.slots[number].asked_us = 0;
            self.ready_if_complete(number);
        }

        /// False when no buffer was free.
        fn ask_of(self: *Self, number: u32, segment: *Segment, subsearch: *SegmentSearch) bool {
            const slot = &self.slots[number];
            const round = &subsearch.search.round;
            const file = subsearch.search.file();
            while (round.upcoming()) |page| {
                if (slot.use_cached(subsearch, file, page)) continue;
                const name = InFlight.name_of(segment.number, @intFromEnum(file), page);
                const buffer = self.in_flight.find(name) orelse blk: {
                    const own = self.begin_read(number, segment, file, page) orelse {
                        slot.starved = true;
                        self.pools[@intFromEnum(file)].starved.push(number);
                        return false;
                    };
                    self.in_flight.insert(name, own);
                    break :blk own;
                };
                round.advance();
                slot.in_flight += 1;
                subsearch.in_flight += 1;
                self.in_flight.wait(buffer, number);
            }
            return true;
        }

        /// Null when no buffer is free.
        fn begin_read(self: *Self, number: u32, segment: *Segment, file: File, page: u32) ?u32 {
            const buffer = self.pools[@intFromEnum(file)].free.pop() orelse return null;
            self.users[buffer] = 1;
            const read = &self.reads[buffer];
            self.sources[buffer] = segment;
            const reader = segment.shared.reader;
            read.offset = switch (file) {
                .pages => reader.pages_header.offset_of(page),
                .vectors => reader.vectors.?.geometry.offset_of(page),
            };
            read.length = switch (file) {
                .pages => reader.pages_header.page_size,
                .vectors => reader.vectors.?.geometry.page_size,
            };
            read.fd = segment.files[@intFromEnum(file)];
            read.context = context_of(number, page);
            self.device.submit(read);
            return buffer;
        }

        /// A read's asker, whose counters it enters, and its page.
        fn context_of(number: u32, page: u32) usize {
            return @as(usize, number) << 32 | page;
        }

        fn feed_starved(self: *Self) void {
            for (&self.pools) |*pool| {
                var count = pool.starved.len;
                while (count > 0 and pool.free.len > 0) : (count -= 1) {
                    const number = pool.starved.pop().?;
                    self.slots[number].starved = false;
                    if (self.slots[number].outcome == .ok) self.ask(number);
                    self.ready_if_complete(number);
                }
            }
        }

        /// After an arrival: what waits for all of its pages goes on when they are there, the others with what they have.
        fn ready_if_complete(self: *Self, number: u32) void {
            const slot = &self.slots[number];
            if (slot.starved) return;
            if (slot.outcome == .ok and !slot.ended) {
                if (!self.goes_on(number)) return;
            } else if (slot.in_flight > 0) return;
            self.make_ready(number);
        }

        fn goes_on(self: *const Self, number: u32) bool {
            const subsearches = self.subsearches_of(number);
            var goes = true;
            for (0..subsearches.count()) |i| {
                const subsearch = subsearches.at(i);
                if (!subsearch.search.round.is_asked()) return false;
                if (subsearch.due and !subsearch.ended and !subsearch.waits_for_all()) return true;
                if (subsearch.waits_for_all() and subsearch.in_flight > 0) goes = false;
            }
            return goes;
        }

        /// Hands a page to all that wait for it. One that is damaged or did not come is read again for those that
        /// still want it, in case that was the transfer's fault and not the medium's.
        fn arrive(self: *Self, read: *io.Read) void {
            const asker: u32 = @intCast(read.context >> 32);
            const page: u32 = @truncate(read.context);
            const buffer: u32 = @intCast(read - self.reads.ptr);
            const arrived = look_at(read, self.sources[buffer], page);
            if (arrived == .view or arrived == .vectors) if (self.sources[buffer].shared.page_cache_of(read.file)) |cache| {
                _ = cache.try_insert(page, read.data());
            };
            var from: u32 = 0;
            while (self.in_flight.next_waiting(buffer, from)) |number| : (from = number + 1) {
                const slot = &self.slots[number];
                const subsearch = self.subsearch_of(buffer, number);
                if (slot.asked_us > 0) {
                    // The rest of another query's read says nothing of the device.
                    if (number == asker) self.measure(&self.wait_us, base.nowMicros() -| slot.asked_us);
                    slot.asked_us = 0;
                }
                if (slot.outcome == .ok and read.status == .ok) {
                    const cost = &subsearch.search.cost;
                    if (number == asker) {
                        cost.reads += 1;
                        cost.bytes_read += read.bytes;
                    } else if (arrived == .view or arrived == .vectors) cost.shared_reads += 1;
                }
                const fate = slot.use(subsearch, @enumFromInt(read.file), page, arrived, buffer) orelse continue;
                self.in_flight.leave(buffer, number);
                slot.in_flight -= 1;
                subsearch.in_flight -= 1;
                subsearch.due = true;
                switch (fate) {
                    .free => {},
                    .hold => self.users[buffer] += 1,
                    .exchange => |other| {
                        self.users[buffer] += 1;
                        self.put_back(other);
                    },
                }
                self.ready_if_complete(number);
            }
            if (self.in_flight.next_waiting(buffer, 0)) |first| {
                assert(self.users[buffer] == 1); // the waiting query has seen the page as well: no query holds it
                if (!self.in_flight.waits(buffer, asker)) read.context = context_of(first, page);
                self.device.submit(read);
            } else {
                self.in_flight.remove(InFlight.name_of(self.sources[buffer].number, read.file, page), buffer);
                self.put_back(buffer);
            }
        }

        fn look_at(read: *const io.Read, segment: *const Segment, page: u32) Arrived {
            switch (read.status) {
                .ok => {},
                .short => return .{ .damaged = .corrupt }, // a file that ends before its page is damaged
                else => return .{ .damaged = .io },
            }
            const reader = segment.shared.reader;
            if (read.file == @intFromEnum(File.vectors)) {
                reader.vectors.?.geometry.check(read.data(), page) catch return .{ .damaged = .corrupt };
                return .{ .vectors = read.data() };
            }
            const view = layout.page.View.parse(read.data(), reader.page_geometry(), reader.expected_page(page)) catch |err| return switch (err) {
                error.BadChecksum, error.WrongPage, error.WrongIndex => .{ .damaged = .corrupt },
                error.BadRecordCount, error.BadAdjacency, error.BadFactors, error.BadTable => .broken,
            };
            return .{ .view = view };
        }

        /// One of its users needs the buffer no more.
        fn put_back(self: *Self, buffer: u32) void {
            self.users[buffer] -= 1;
            if (self.users[buffer] > 0) return;
            self.pools[self.reads[buffer].file].free.push(buffer);
        }

        fn finish(self: *Self, number: u32) void {
            const slot = &self.slots[number];
            const job = slot.job;
            const subsearches = self.subsearches_of(number);
            slot.write_answer(subsearches, self.hits);
            for (0..subsearches.count()) |i| subsearches.at(i).search.end();
            self.take_released(number);
            subsearches.give_back();
            self.idle.push(number);
            if (!job.finish_query(slot.outcome, slot.page, slot.file)) return;
            job.following = self.ended;
            self.ended = job;
            self.ended_count += 1;
        }

        /// Wakes those whose calls have ended. Called before every wait, and at least every few calls.
        fn report_ended(self: *Self) void {
            while (self.ended) |job| {
                self.ended = job.following; // the job may be gone after its callback, its segments not yet
                var segments: [job_file.segments_max]*Segment = undefined;
                const count = job.segments.len;
                for (job.segments, segments[0..count]) |one, *segment| segment.* = one.segment;
                job.on_done(job);
                for (segments[0..count]) |segment| segment.leave();
            }
            self.ended_count = 0;
        }
    };
}

/// Queries that keep a processor busy (VeloANN, §3.1, B = ⌈α·I/T⌉): while one waits for its pages the others work,
/// α = 2 because pages of several queries come at once and leave as many to be computed. More would only wait longer.
fn live_limit(wait_us: f32, work_us: f32, slot_count: u32) u32 {
    const wanted = @ceil(2 * wait_us / @max(work_us, 1));
    return @max(@min(live_min, slot_count), @as(u32, @intFromFloat(@min(wanted, @as(f32, @floatFromInt(slot_count))))));
}

// ---- buffers ----

/// Buffers for pages of one file, and who waits for one.
const Pool = struct {
    memory: base.AlignedBytes,
    buffer_count: u32,
    free: Stack,
    starved: Stack,

    /// Sets up the reads of its buffers, which are those from `first` on.
    pub fn init(allocator: std.mem.Allocator, file: u1, reads: []io.Read, first: u32, page_size: u32, slot_count: u32) error{OutOfMemory}!Pool {
        // Kernels and list readers look a little past a page: the next sector is theirs to look at.
        const stride = page_size + io.sector_size;
        var memory: base.AlignedBytes = if (reads.len == 0) .empty else try .alloc(reads.len * stride, .{});
        errdefer memory.free();
        var free = try Stack.init(allocator, @intCast(reads.len));
        errdefer free.deinit(allocator);
        var left = reads.len;
        while (left > 0) {
            left -= 1;
            reads[left] = .{ .file = file, .offset = 0, .buffer = @alignCast(memory.bytes.ptr + left * stride), .length = page_size };
            free.push(first + @as(u32, @intCast(left)));
        }
        return .{ .memory = memory, .buffer_count = @intCast(reads.len), .free = free, .starved = try .init(allocator, slot_count) };
    }

    pub fn deinit(self: *Pool, allocator: std.mem.Allocator) void {
        self.starved.deinit(allocator);
        self.free.deinit(allocator);
        self.memory.free();
    }
};

/// A fixed stack of numbers of slots or buffers.
const Stack = struct {
    items: []u32,
    len: u32 = 0,

    pub fn init(allocator: std.mem.Allocator, capacity: u32) error{OutOfMemory}!Stack {
        return .{ .items = try allocator.alloc(u32, capacity) };
    }
    pub fn deinit(self: *Stack, allocator: std.mem.Allocator) void {
        allocator.free(self.items);
    }
    pub fn push(self: *Stack, item: u32) void {
        self.items[self.len] = item;
        self.len += 1;
    }
    pub fn pop(self: *Stack) ?u32 {
        if (self.len == 0) return null;
        self.len -= 1;
        return self.items[self.len];
    }
};

// ---- processors ----
//
// Workers are bound to processors: those of indexes that are open side by side spread over the machine.

/// The next processor to bind a worker to.
var upcoming: std.atomic.Value(u32) = .init(0);

/// Numbers for so many workers, from the one returned on.
fn take_processors(count: u32) u32 {
    return upcoming.fetchAdd(count, .monotonic);
}

/// Binds the calling thread to one of the processors it may run on. A wish: a system that refuses loses only speed.
fn pin_to_processor(number: u32) void {
    const linux = std.os.linux;
    var allowed: linux.cpu_set_t = @splat(0);
    if (linux.E.init(linux.sched_getaffinity(0, @sizeOf(linux.cpu_set_t), &allowed)) != .SUCCESS) return;
    var count: u32 = 0;
    for (allowed) |word| count += @popCount(word);
    if (count == 0) return;
    var skip = number % count;
    for (&allowed, 0..) |*word, i| {
        var rest = word.*;
        while (rest != 0) : (rest &= rest - 1) {
            if (skip == 0) {
                var one: linux.cpu_set_t = @splat(0);
                one[i] = rest & (~rest + 1);
                linux.sched_setaffinity(0, &one) catch {};
                return;
            }
            skip -= 1;
        }
    }
}

comptime {
    assert(builtin.os.tag == .linux);
}

// ---- pages on their way ----
//
// The pages that a worker's reads are bringing, and which of its queries wait for each: one read serves them all.
// Nothing here can run out: a page has a buffer for as long as it is on its way, and a buffer a bit for every slot.

const InFlight = struct {
    /// Which buffer a page is being read into, by open addressing.
    table: []Entry,
    /// A bit a slot, `words` of them a buffer.
    waiting: []u64,
    words: u32,

    const Entry = struct { page: u64, buffer: u32 };
    const empty = std.math.maxInt(u64);

    /// A page of one of the files of a segment, as the calls below name it.
    pub fn name_of(segment: u31, file: u1, page: u32) u64 {
        return @as(u64, segment) << 33 | @as(u64, file) << 32 | page;
    }

    pub fn init(allocator: std.mem.Allocator, buffer_count: u32, slot_count: u32) error{OutOfMemory}!InFlight {
        const words = std.math.divCeil(u32, slot_count, 64) catch unreachable;
        const table = try base.alloc_untouched(allocator, Entry, std.math.ceilPowerOfTwoAssert(usize, 2 * @as(usize, buffer_count)));
        errdefer base.free_untouched(allocator, table);
        @memset(table, .{ .page = empty, .buffer = 0 });
        const waiting = try base.alloc_untouched(allocator, u64, @as(usize, buffer_count) * words);
        @memset(waiting, 0);
        return .{ .table = table, .waiting = waiting, .words = words };
    }

    pub fn deinit(self: *InFlight, allocator: std.mem.Allocator) void {
        base.free_untouched(allocator, self.table);
        base.free_untouched(allocator, self.waiting);
    }

    pub fn memory_bytes(self: *const InFlight) u64 {
        return self.table.len * @sizeOf(Entry) + self.waiting.len * 8;
    }

    /// The buffer that this page is on its way to.
    pub fn find(self: *const InFlight, page: u64) ?u32 {
        const entry = self.table[self.place_of(page)];
        return if (entry.page == page) entry.buffer else null;
    }

    pub fn insert(self: *InFlight, page: u64, buffer: u32) void {
        const place = self.place_of(page);
        assert(self.table[place].page == empty);
        self.table[place] = .{ .page = page, .buffer = buffer };
    }

    /// The read into this buffer is over. (Another of the same page may be under way: one that is not shared.)
    pub fn remove(self: *InFlight, page: u64, buffer: u32) void {
        const mask = self.table.len - 1;
        var hole = self.place_of(page);
        if (self.table[hole].page != page or self.table[hole].buffer != buffer) return;
        // Those behind it in its run move up, unless their own place lies between the hole and where they are.
        var at = hole;
        while (true) {
            at = (at + 1) & mask;
            const moved = self.table[at];
            if (moved.page == empty) break;
            if ((at -% self.home_of(moved.page)) & mask >= (at -% hole) & mask) {
                self.table[hole] = moved;
                hole = at;
            }
        }
        self.table[hole].page = empty;
    }

    pub fn wait(self: *InFlight, buffer: u32, slot: u32) void {
        assert(!self.waits(buffer, slot));
        self.waiting_for(buffer)[slot / 64] |= bit(slot);
    }

    pub fn leave(self: *InFlight, buffer: u32, slot: u32) void {
        assert(self.waits(buffer, slot));
        self.waiting_for(buffer)[slot / 64] &= ~bit(slot);
    }

    pub fn waits(self: *const InFlight, buffer: u32, slot: u32) bool {
        return self.waiting_for(buffer)[slot / 64] & bit(slot) != 0;
    }

    /// The first slot, counted from `from`, that waits for this buffer.
    fn next_waiting(self: *const InFlight, buffer: u32, from: u32) ?u32 {
        const words = self.waiting_for(buffer);
        var word = from / 64;
        if (word >= words.len) return null;
        var bits = words[word] & ~(bit(from) - 1);
        while (bits == 0) {
            word += 1;
            if (word == words.len) return null;
            bits = words[word];
        }
        return word * 64 + @ctz(bits);
    }

    fn waiting_for(self: *const InFlight, buffer: u32) []u64 {
        return self.waiting[@as(usize, buffer) * self.words ..][0..self.words];
    }

    fn bit(slot: u32) u64 {
        return @as(u64, 1) << @intCast(slot % 64);
    }

    fn home_of(self: *const InFlight, page: u64) usize {
        return @intCast((page *% 0x9e3779b97f4a7c15 >> 40) & (self.table.len - 1));
    }

    /// The place of the page, or the place where it would be.
    fn place_of(self: *const InFlight, page: u64) usize {
        var at = self.home_of(page);
        while (self.table[at].page != empty and self.table[at].page != page) at = (at + 1) & (self.table.len - 1);
        return at;
    }
};

test "queries in flight cover the device's latency, within what there is" {
    try std.testing.expectEqual(4, live_limit(0, 0, 16));
    try std.testing.expectEqual(8, live_limit(100, 25, 16));
    try std.testing.expectEqual(16, live_limit(10_000, 25, 16));
    try std.testing.expectEqual(2, live_limit(10_000, 25, 2));
    try std.testing.expectEqual(4, live_limit(10, 400, 16));
}

test "pages on their way agree with a map, and their waiters with sets" {
    const buffer_count = 24;
    const slot_count = 130;
    var in_flight = try InFlight.init(std.testing.allocator, buffer_count, slot_count);
    defer in_flight.deinit(std.testing.allocator);
    var prng = std.Random.DefaultPrng.init(std.testing.random_seed);
    errdefer std.debug.print("seed={d}\n", .{std.testing.random_seed});
    const random = prng.random();
    var pages: [buffer_count]?u64 = @splat(null);
    var waiters: [buffer_count]std.StaticBitSet(slot_count) = @splat(.initEmpty());
    for (0..20_000) |_| {
        const buffer = random.uintLessThan(u32, buffer_count);
        const page = InFlight.name_of(random.uintLessThan(u31, 2), random.int(u1), random.uintLessThan(u32, 10));
        const known: ?u32 = for (pages, 0..) |own, i| {
            if (own == page) break @intCast(i);
        } else null;
        try std.testing.expectEqual(known, in_flight.find(page));
        if (pages[buffer]) |own| {
            if (random.uintLessThan(u32, 4) == 0) {
                in_flight.remove(own, buffer);
                pages[buffer] = null;
            } else in_flight.remove(own, (buffer + 1) % buffer_count); // another buffer's: nothing happens
        } else if (known == null) {
            in_flight.insert(page, buffer);
            pages[buffer] = page;
        }
        const slot = random.uintLessThan(u32, slot_count);
        const set = &waiters[buffer];
        try std.testing.expectEqual(set.isSet(slot), in_flight.waits(buffer, slot));
        if (set.isSet(slot)) in_flight.leave(buffer, slot) else in_flight.wait(buffer, slot);
        set.toggle(slot);
        var expected = set.iterator(.{});
        var from: u32 = 0;
        while (in_flight.next_waiting(buffer, from)) |found| : (from = found + 1) try std.testing.expectEqual(expected.next(), found);
        try std.testing.expectEqual(null, expected.next());
    }
}
