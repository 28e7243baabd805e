//! A worker: a thread with a device of its own that interleaves queries, so that none waits for another. What is on its
//! way for one query is not read again for another (in_flight.zig).
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const io = @import("io");
const company = @import("company.zig");
const job_file = @import("job.zig");
const Job = job_file.Job;
const Queue = job_file.Queue;
const part_file = @import("part.zig");
const Leg = part_file.Leg;
const Part = part_file.Part;
const parameters = @import("parameters.zig");
const File = @import("search_state.zig").File;
const slot_file = @import("slot.zig");
const Arrived = slot_file.Arrived;
const Slot = slot_file.Slot;
const RecentPages = @import("recent_pages.zig").RecentPages;
const InFlight = @import("in_flight.zig").InFlight;
const Pool = @import("buffers.zig").Pool;
const Stack = @import("buffers.zig").Stack;
const Options = @import("engine.zig").Options;
const processors = @import("processors.zig");
const assert = std.debug.assert;

/// An adaptive worker takes as many whatever it has measured.
const live_min = 4;
/// Reads that a query with links on disk may have on their way beside the pages that it holds.
const beam_reads_max = base.limits.ranges.beam_width.max;
/// Slots of the cache that a worker keeps free for what is being read.
const slots_ahead = 32;
/// Calls whose end a worker keeps to itself at most, while other queries wait for it.
const ended_max = 4;
/// How long a worker with one query looks for its reads before it sleeps.
const awake_us = 300;

pub fn Worker(comptime Device: type) type {
    return struct {
        const Self = @This();

        queue: *Queue,
        device: Device,
        /// Buffers for pages of each file. Their numbers are those of `reads`, first all of the first pool.
        pools: [io.file_count]Pool,
        reads: []io.Read,
        /// Of each buffer the part whose page is read into it.
        sources: []*Part,
        /// Who needs a buffer: the read into it, and every query that holds its page.
        users: []u32,
        in_flight: InFlight,
        slots: []Slot,
        /// Room for what a delta finds.
        hits: []job_file.Delta.Hit,
        /// Of a part's legs the one of the first slot.
        first_leg: usize,
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
        /// Jobs whose last query has ended here, not told yet.
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
            const sources = try base.alloc_untouched(allocator, *Part, buffer_count);
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
                .first_leg = number * slot_count,
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
            processors.pin(self.processor);
            while (true) {
                // One query at a time enters between two turns, so that workers share what waits evenly.
                if (self.has_room()) {
                    const nothing_live = self.idle.len == self.slots.len;
                    if (nothing_live) self.tell(); // before a wait for what those who are told may ask next
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
                if (nothing_to_do or self.ended_count >= ended_max or !self.queue.waiting.load(.acquire)) self.tell();
                const done_count = if (nothing_to_do) self.wait() else self.device.poll(self.done, .none);
                for (self.done[0..done_count]) |read| self.arrive(read);
                self.feed_starved();
            }
        }

        fn sweep(self: *Self) void {
            const slot = &self.slots[self.asked_last];
            if (slot.in_flight == 0) return;
            for (slot.job.parts) |one| if (one.part.shared.cache) |cache| {
                _ = cache.sweep(slots_ahead);
            };
        }

        fn legs_of(self: *const Self, number: u32) company.Legs {
            return .{ .parts = self.slots[number].job.parts, .place = self.first_leg + number };
        }

        /// The leg that a page in this buffer is for.
        fn leg_of(self: *const Self, buffer: u32, number: u32) *Leg {
            return &self.sources[buffer].legs[self.first_leg + number];
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
            const legs = self.legs_of(number);
            if (job.canceled.load(.monotonic)) { // what was never begun costs nothing
                slot.outcome = .canceled;
                for (0..legs.count()) |i| legs.at(i).search.cost = .{};
                return self.make_ready(number);
            }
            slot.start(legs);
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
                    const step = company.step(self.legs_of(number), slot.job.k());
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
            const legs = self.legs_of(number);
            for (0..legs.count()) |i| {
                for (legs.at(i).search.released.take()) |buffer| self.put_back(buffer);
            }
        }

        fn wants_pages(self: *const Self, number: u32) bool {
            const legs = self.legs_of(number);
            for (0..legs.count()) |i| if (!legs.at(i).search.round.is_asked()) return true;
            return false;
        }

        /// Pages that are on their way for another query are waited for, the others are read.
        fn ask(self: *Self, number: u32) void {
            const legs = self.legs_of(number);
            for (legs.parts, 0..) |*one, i| {
                if (!self.ask_of(number, one.part, legs.at(i))) return;
            }
        }

        /// The page cache had all that was wanted: that was no round of reads.
        fn go_on_without_reads(self: *Self, number: u32) void {
            const legs = self.legs_of(number);
            if (legs.count() == 1) legs.at(0).search.cost.rounds -|= 1;
            self.slots[number].asked_us = 0;
            self.ready_if_complete(number);
        }

        /// False when no buffer was free.
        fn ask_of(self: *Self, number: u32, part: *Part, leg: *Leg) bool {
            const slot = &self.slots[number];
            const round = &leg.search.round;
            const file = leg.search.file();
            while (round.upcoming()) |page| {
                if (slot.use_cached(leg, file, page)) continue;
                const name = InFlight.name_of(part.number, @intFromEnum(file), page);
                const buffer = self.in_flight.find(name) orelse blk: {
                    const own = self.begin_read(number, part, file, page) orelse {
                        slot.starved = true;
                        self.pools[@intFromEnum(file)].starved.push(number);
                        return false;
                    };
                    self.in_flight.insert(name, own);
                    break :blk own;
                };
                round.advance();
                slot.in_flight += 1;
                leg.in_flight += 1;
                self.in_flight.wait(buffer, number);
            }
            return true;
        }

        /// Null when no buffer is free.
        fn begin_read(self: *Self, number: u32, part: *Part, file: File, page: u32) ?u32 {
            const buffer = self.pools[@intFromEnum(file)].free.pop() orelse return null;
            self.users[buffer] = 1;
            const read = &self.reads[buffer];
            self.sources[buffer] = part;
            const reader = part.shared.reader;
            read.offset = switch (file) {
                .pages => reader.pages_header.offset_of(page),
                .vectors => reader.vectors.?.geometry.offset_of(page),
            };
            read.length = switch (file) {
                .pages => reader.pages_header.page_size,
                .vectors => reader.vectors.?.geometry.page_size,
            };
            read.fd = part.files[@intFromEnum(file)];
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
            const legs = self.legs_of(number);
            var goes = true;
            for (0..legs.count()) |i| {
                const leg = legs.at(i);
                if (!leg.search.round.is_asked()) return false;
                if (leg.due and !leg.ended and !leg.waits_for_all()) return true;
                if (leg.waits_for_all() and leg.in_flight > 0) goes = false;
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
                const leg = self.leg_of(buffer, number);
                if (slot.asked_us > 0) {
                    // What another's read had left to wait says nothing of the device.
                    if (number == asker) self.measure(&self.wait_us, base.nowMicros() -| slot.asked_us);
                    slot.asked_us = 0;
                }
                if (slot.outcome == .ok and read.status == .ok) {
                    const cost = &leg.search.cost;
                    if (number == asker) {
                        cost.reads += 1;
                        cost.bytes_read += read.bytes;
                    } else if (arrived == .view or arrived == .vectors) cost.shared_reads += 1;
                }
                const fate = slot.use(leg, @enumFromInt(read.file), page, arrived, buffer) orelse continue;
                self.in_flight.leave(buffer, number);
                slot.in_flight -= 1;
                leg.in_flight -= 1;
                leg.due = true;
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
                assert(self.users[buffer] == 1); // who waits still has seen what all saw: nobody holds it
                if (!self.in_flight.waits(buffer, asker)) read.context = context_of(first, page);
                self.device.submit(read);
            } else {
                self.in_flight.remove(InFlight.name_of(self.sources[buffer].number, read.file, page), buffer);
                self.put_back(buffer);
            }
        }

        fn look_at(read: *const io.Read, part: *const Part, page: u32) Arrived {
            switch (read.status) {
                .ok => {},
                .short => return .{ .damaged = .corrupt }, // a file that ends before its page is damaged
                else => return .{ .damaged = .io },
            }
            const reader = part.shared.reader;
            if (read.file == @intFromEnum(File.vectors)) {
                reader.vectors.?.geometry.check(read.data(), page) catch return .{ .damaged = .corrupt };
                return .{ .vectors = read.data() };
            }
            const view = layout.page.View.parse(read.data(), reader.page_geometry(), reader.expected_page(page)) catch |err| return switch (err) {
                error.BadChecksum, error.WrongPage, error.WrongIndex => .{ .damaged = .corrupt },
                error.BadRecordCount, error.BadAdjacency, error.BadFactors => .broken,
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
            const legs = self.legs_of(number);
            slot.write_answer(legs, self.hits);
            for (0..legs.count()) |i| legs.at(i).search.end();
            self.take_released(number);
            self.idle.push(number);
            if (!job.finish_query(slot.outcome, slot.page, slot.file)) return;
            job.following = self.ended;
            self.ended = job;
            self.ended_count += 1;
        }

        /// Wakes those whose calls have ended. Called before every wait, and at least every few calls.
        fn tell(self: *Self) void {
            while (self.ended) |job| {
                self.ended = job.following; // the job may be gone once it was told, its parts not yet
                var parts: [job_file.parts_max]*Part = undefined;
                const count = job.parts.len;
                for (job.parts, parts[0..count]) |one, *part| part.* = one.part;
                job.on_done(job);
                for (parts[0..count]) |part| part.leave();
            }
            self.ended_count = 0;
        }
    };
}

/// How many queries keep a processor busy (VeloANN, §3.1, B = ⌈α·I/T⌉): while one waits for its pages the others work,
/// α = 2 because pages of several queries come at once and leave as many to be computed. More would only wait longer.
fn live_limit(wait_us: f32, work_us: f32, slot_count: u32) u32 {
    const wanted = @ceil(2 * wait_us / @max(work_us, 1));
    return @max(@min(live_min, slot_count), @as(u32, @intFromFloat(@min(wanted, @as(f32, @floatFromInt(slot_count))))));
}

test "queries in flight cover the device's latency, within what there is" {
    try std.testing.expectEqual(4, live_limit(0, 0, 16));
    try std.testing.expectEqual(8, live_limit(100, 25, 16));
    try std.testing.expectEqual(16, live_limit(10_000, 25, 16));
    try std.testing.expectEqual(2, live_limit(10_000, 25, 2));
    try std.testing.expectEqual(4, live_limit(10, 400, 16));
}
