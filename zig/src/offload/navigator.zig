//! Batches of queries on one GPU of this process.
//!
//! A call of many queries is cut into batches. A batch is prepared, uploaded, navigated and downloaded in one of two slots. Then
//! its candidate lists go to the workers of its index as a job of their own, which reads pages and finishes as any job, while the
//! batch of the other slot is on the GPU:
//!
//!   free ──▶ navigating ──▶ ranking ──▶ free
//!        (GPU and copies)  (workers)
//!
//! One thread, `run`, serves both slots. After any failure the workers answer the batch from the beginning. A lost device gets no
//! further batch.
const std = @import("std");
const base = @import("base");
const quant = @import("quant");
const search = @import("search");
const gpu = @import("gpu");
const Resident = @import("resident.zig").Resident;
const driver = gpu.driver;
const layout = gpu.layout;
const segments_max = search.job.segments_max;
const assert = std.debug.assert;

pub const Options = struct {
    batch_max: u32 = batch_max_default,
    /// Threads that prepare queries.
    threads: u32 = 1,
};

/// Calls of fewer queries stay on the CPU. The latency of a batch (preparation, copies, launch) costs more queries with more threads,
/// and the GPU then saves a smaller share of the call: measured, the crossover grows with the square of the threads (docs/gpu.md).
pub fn queries_least_of(threads: u32) u32 {
    return @max(64, 16 *| threads *| threads);
}

/// Enough queries for every multiprocessor of the largest GPUs, one warp each.
const batch_max_default = 8192;
/// A call is cut into as many batches at least, if each gets `batch_least` queries: so navigation and reads overlap.
const batches_least = 8;
const batch_least = 256;
/// Of page-locked memory and of device memory, for each slot.
pub const slot_bytes_max = 64 << 20;
/// Queries that one thread prepares at least.
const prepared_least = 256;

/// The workers that finish a call.
pub const Workers = struct {
    context: *anyopaque,
    submit_part: *const fn (context: *anyopaque, job: *search.Job) void,
};

const slot_count = 2;

pub const Counts = struct {
    batches: u64 = 0,
    queries: u64 = 0,
    /// Queries whose batch failed, which the CPU has answered.
    failed_queries: u64 = 0,
    /// Queries whose list was not valid.
    refused_lists: u64 = 0,
    /// From the first upload to the last download, of all batches.
    busy_us: u64 = 0,
};

pub const Navigator = struct {
    allocator: std.mem.Allocator,
    card: driver.Card,
    module: driver.Module,
    function: driver.Function,
    options: Options,
    slots: [slot_count]Slot = @splat(.{}),
    thread: std.Thread = undefined,

    mutex: std.Thread.Mutex = .{},
    condition: std.Thread.Condition = .{},
    first: ?*Call = null,
    last: ?*Call = null,
    closed: bool = false,
    residents: std.ArrayList(*Resident) = .empty,
    counts: Counts = .{},
    /// No batch goes to the device any more.
    is_off: std.atomic.Value(bool) = .init(false),
    /// The last failure.
    failure: driver.Diagnostic = .{},
    refused: std.atomic.Value(u64) = .init(0),

    pub fn open(allocator: std.mem.Allocator, card: driver.Card, options: Options, diagnostic: *driver.Diagnostic) (driver.Error || error{ OutOfMemory, ThreadFailed })!*Navigator {
        const self = try allocator.create(Navigator);
        errdefer allocator.destroy(self);
        try card.enter(diagnostic);
        defer card.leave();
        const module = try card.load_module(gpu.ptx, diagnostic);
        errdefer card.unload_module(module);
        self.* = .{
            .allocator = allocator,
            .card = card,
            .module = module,
            .function = try card.function(module, gpu.search_kernel_name, diagnostic),
            .options = options,
        };
        errdefer for (&self.slots) |*slot| slot.deinit(&self.card);
        for (&self.slots) |*slot| try slot.init(&self.card, diagnostic);
        self.thread = std.Thread.spawn(.{ .stack_size = 1 << 20 }, run, .{self}) catch return error.ThreadFailed;
        return self;
    }

    /// No segment is resident any more, and no call is under way.
    pub fn close(self: *Navigator) void {
        self.mutex.lock();
        self.closed = true;
        self.condition.signal();
        self.mutex.unlock();
        self.thread.join();
        assert(self.residents.items.len == 0);
        self.residents.deinit(self.allocator);
        var unused: driver.Diagnostic = .{};
        const entered = self.card.enter(&unused);
        for (&self.slots) |*slot| slot.deinit(&self.card);
        self.card.unload_module(self.module);
        if (entered) |_| self.card.leave() else |_| {}
        self.card.close();
        self.allocator.destroy(self);
    }

    /// Uploads a segment. `remove` gives its memory back.
    pub fn add(self: *Navigator, shared: *const search.Shared, diagnostic: *driver.Diagnostic) (driver.Error || error{OutOfMemory})!*Resident {
        const resident = try self.allocator.create(Resident);
        errdefer self.allocator.destroy(resident);
        try self.card.enter(diagnostic);
        defer self.card.leave();
        resident.* = try Resident.upload(&self.card, shared, diagnostic);
        errdefer resident.deinit(&self.card);
        self.mutex.lock();
        defer self.mutex.unlock();
        try self.residents.append(self.allocator, resident);
        return resident;
    }

    /// No call over the segment is under way.
    pub fn remove(self: *Navigator, resident: *Resident) void {
        self.mutex.lock();
        const place = std.mem.indexOfScalar(*Resident, self.residents.items, resident).?;
        _ = self.residents.swapRemove(place);
        self.mutex.unlock();
        var unused: driver.Diagnostic = .{};
        const entered = self.card.enter(&unused);
        resident.deinit(&self.card);
        if (entered) |_| self.card.leave() else |_| {}
        self.allocator.destroy(resident);
    }

    pub const State = struct { counts: Counts, is_off: bool, failure: driver.Diagnostic };

    pub fn state(self: *Navigator) State {
        self.mutex.lock();
        defer self.mutex.unlock();
        var counts = self.counts;
        counts.refused_lists = self.refused.load(.monotonic);
        return .{ .counts = counts, .is_off = self.is_off.load(.acquire), .failure = self.failure };
    }

    // ---- calls ----

    /// Takes a call of `queries_least` queries or more. False where the workers answer the whole call.
    pub fn submit(self: *Navigator, job: *search.Job, queries_least: u32, workers: Workers) bool {
        if (job.count < queries_least or job.excluded != null or self.is_off.load(.acquire)) return false;
        var plan: [segments_max]Navigation = undefined;
        if (!self.plan_of(job, plan[0..job.segments.len])) return false;
        const call = self.allocator.create(Call) catch return false;
        call.* = .{ .job = job, .workers = workers, .size = self.batch_of(job, &plan), .plan = plan };
        if (!job.enter()) {
            self.allocator.destroy(call);
            return false;
        }
        self.mutex.lock();
        defer self.mutex.unlock();
        if (self.last) |last| last.following = call else self.first = call;
        self.last = call;
        self.condition.signal();
        return true;
    }

    /// Of each segment how it is navigated. False where none is.
    fn plan_of(self: *Navigator, job: *const search.Job, plan: []Navigation) bool {
        var any = false;
        self.mutex.lock();
        defer self.mutex.unlock();
        for (job.segments, plan) |*segment, *own| {
            own.* = .{};
            const elsewhere = search.Elsewhere.of(segment) orelse continue;
            if (elsewhere.list_size > layout.list_size_max) continue;
            for (self.residents.items) |resident| {
                if (resident.shared != segment.segment.shared) continue;
                own.* = .{ .resident = resident, .list_size = elsewhere.list_size, .stop = elsewhere.stop };
                any = true;
            }
        }
        return any;
    }

    fn batch_of(self: *const Navigator, job: *const search.Job, plan: *const [segments_max]Navigation) u32 {
        var query_bytes: u64 = 0;
        for (plan[0..job.segments.len]) |*one| query_bytes += one.bytes_each();
        return batch_size(job.count, query_bytes, self.options.batch_max);
    }

    // ---- slots ----

    fn run(self: *Navigator) void {
        var diagnostic: driver.Diagnostic = .{};
        const entered = self.card.enter(&diagnostic);
        defer if (entered) |_| self.card.leave() else |_| {};
        entered catch |err| self.note(err, &diagnostic);
        self.mutex.lock();
        defer self.mutex.unlock();
        while (true) {
            if (self.slot_in(.ranked)) |slot| {
                self.mutex.unlock();
                defer self.mutex.lock();
                finish(self.allocator, slot);
            } else if (self.first != null and self.slot_in(.free) != null) {
                const slot = self.slot_in(.free).?;
                self.take(slot);
                self.mutex.unlock();
                defer self.mutex.lock();
                self.begin(slot);
            } else if (self.slot_in(.navigating)) |slot| {
                self.mutex.unlock();
                defer self.mutex.lock();
                self.rank(slot);
            } else {
                if (self.closed and self.slot_in(.ranking) == null) return;
                self.condition.wait(&self.mutex);
            }
        }
    }

    /// Of the slots in a state the one that began first.
    fn slot_in(self: *Navigator, wanted: Slot.State) ?*Slot {
        var found: ?*Slot = null;
        for (&self.slots) |*slot| {
            if (slot.state != wanted) continue;
            if (found == null or slot.number < found.?.number) found = slot;
        }
        return found;
    }

    /// The next queries of the first call.
    fn take(self: *Navigator, slot: *Slot) void {
        const call = self.first.?;
        slot.call = call;
        slot.begin = call.next;
        slot.count = @intCast(@min(call.size, call.job.count - call.next));
        slot.number = self.counts.batches;
        self.counts.batches += 1;
        self.counts.queries += slot.count;
        call.next += slot.count;
        if (call.next < call.job.count) return;
        self.first = call.following;
        if (self.first == null) self.last = null;
    }

    fn begin(self: *Navigator, slot: *Slot) void {
        slot.prepare_part(on_ranked, self);
        if (slot.call.is_over()) return self.send(slot);
        if (self.is_off.load(.acquire)) return self.give_up(slot);
        var diagnostic: driver.Diagnostic = .{};
        slot.navigate(self, &diagnostic) catch |err| {
            self.note(err, &diagnostic);
            return self.give_up(slot);
        };
        self.set(slot, .navigating);
    }

    /// Waits for the device, and hands the lists to the workers.
    fn rank(self: *Navigator, slot: *Slot) void {
        var diagnostic: driver.Diagnostic = .{};
        slot.wait(self, &diagnostic) catch |err| {
            self.note(err, &diagnostic);
            return self.give_up(slot);
        };
        self.send(slot);
    }

    /// The workers navigate for the batch.
    fn give_up(self: *Navigator, slot: *Slot) void {
        for (slot.segments[0..slot.part.segments.len]) |*segment| segment.navigated = null;
        self.mutex.lock();
        self.counts.failed_queries += slot.count;
        self.mutex.unlock();
        self.send(slot);
    }

    /// Hands the batch to the workers, with the lists that it has.
    fn send(self: *Navigator, slot: *Slot) void {
        self.set(slot, .ranking);
        slot.call.workers.submit_part(slot.call.workers.context, &slot.part);
    }

    fn set(self: *Navigator, slot: *Slot, next: Slot.State) void {
        self.mutex.lock();
        defer self.mutex.unlock();
        slot.state = next;
    }

    /// By a worker.
    fn on_ranked(part: *search.Job) void {
        const slot: *Slot = @fieldParentPtr("part", part);
        const self = slot.navigator;
        self.mutex.lock();
        defer self.mutex.unlock();
        slot.state = .ranked;
        self.condition.signal();
    }

    /// Keeps a failure. Lack of memory passes; after any other one the device gets nothing more.
    fn note(self: *Navigator, err: anyerror, diagnostic: *const driver.Diagnostic) void {
        self.mutex.lock();
        defer self.mutex.unlock();
        self.failure = diagnostic.*;
        if (self.failure.len == 0) self.failure.set("{t}", .{err});
        if (err != error.DeviceMemory and err != error.OutOfMemory) self.is_off.store(true, .release);
    }
};

/// The number of queries in a batch. A call of `count` queries is split evenly, and a batch fits into a slot at `query_bytes` per query.
pub fn batch_size(count: u64, query_bytes: u64, batch_max: u32) u32 {
    const parts_least = std.math.clamp(count / batch_least, 1, batches_least);
    const parts = @max(parts_least, std.math.divCeil(u64, count, batch_max) catch unreachable);
    const fitting = @max(1, (slot_bytes_max - Arrays.padding_max) / query_bytes);
    return @intCast(@min(fitting, std.math.divCeil(u64, count, parts) catch unreachable));
}

/// Ends a batch, and the call with its last one.
fn finish(allocator: std.mem.Allocator, slot: *Slot) void {
    const call = slot.call;
    const job = call.job;
    slot.part.report_to_whole();
    slot.state = .free; // of this thread alone where nothing is ranked on it
    call.ended += slot.count;
    if (call.ended < job.count) return;
    var segments: [segments_max]*search.Segment = undefined;
    const count = job.segments.len;
    for (job.segments, segments[0..count]) |one, *segment| segment.* = one.segment;
    allocator.destroy(call);
    job.on_done(job); // the job may be gone after its callback, its segments not yet
    for (segments[0..count]) |segment| segment.leave();
}

/// How one segment of a call is navigated.
const Navigation = struct {
    /// Null: by the workers.
    resident: ?*const Resident = null,
    list_size: u32 = 0,
    stop: search.Stop = .never,

    fn index(self: *const Navigation) ?*const layout.Index {
        return if (self.resident) |resident| &resident.index else null;
    }

    /// Bytes of a query in a slot, without padding of arrays.
    fn bytes_each(self: *const Navigation) u64 {
        const own = self.index() orelse return 0;
        return @sizeOf(layout.Query) + 4 * (layout.plane_words_of(own.dim) + own.center_count) + 8 * self.list_size + @sizeOf(layout.Counters);
    }
};

/// A call under way.
const Call = struct {
    job: *search.Job,
    workers: Workers,
    /// Queries of a batch.
    size: u32,
    plan: [segments_max]Navigation,
    next: u64 = 0,
    ended: u64 = 0,
    following: ?*Call = null,

    /// Its answers are not wanted any more.
    fn is_over(self: *const Call) bool {
        const job = self.job;
        return job.is_canceled() or job.is_closing() or (job.deadline_us > 0 and base.nowMicros() >= job.deadline_us);
    }
};

/// The arrays of one segment in a slot, as offsets: those that are uploaded, then those that come back.
const Arrays = struct {
    queries: usize = 0,
    planes: usize = 0,
    terms: usize = 0,
    candidates: usize = 0,
    counters: usize = 0,

    const alignment = 64;
    /// Of all arrays of a slot.
    const padding_max = segments_max * std.meta.fields(Arrays).len * alignment;

    fn place(at: *usize, bytes: usize) usize {
        const own = at.*;
        at.* = std.mem.alignForward(usize, own + bytes, alignment);
        return own;
    }
};

const Slot = struct {
    const State = enum { free, navigating, ranking, ranked };

    state: State = .free,
    /// Of its batch among all batches.
    number: u64 = 0,
    navigator: *Navigator = undefined,
    stream: ?driver.Stream = null,
    started: ?driver.Event = null,
    finished: ?driver.Event = null,
    /// The same arrays on both machines.
    host: []align(64) u8 = &.{},
    device: driver.Buffer = .none,

    call: *Call = undefined,
    begin: u64 = 0,
    count: u32 = 0,
    part: search.Job = undefined,
    segments: [segments_max]search.JobSegment = undefined,
    navigated: [segments_max]search.Navigated = undefined,
    arrays: [segments_max]Arrays = undefined,
    /// The first byte that comes back.
    results_at: usize = 0,

    fn init(self: *Slot, card: *const driver.Card, diagnostic: *driver.Diagnostic) driver.Error!void {
        self.stream = try card.create_stream(diagnostic);
        self.started = try card.create_event(diagnostic);
        self.finished = try card.create_event(diagnostic);
    }

    fn deinit(self: *Slot, card: *const driver.Card) void {
        if (self.stream) |stream| card.destroy_stream(stream);
        if (self.started) |event| card.destroy_event(event);
        if (self.finished) |event| card.destroy_event(event);
        self.free_memory(card);
        self.* = .{};
    }

    fn free_memory(self: *Slot, card: *const driver.Card) void {
        card.free(&self.device);
        if (self.host.len > 0) card.free_host(self.host);
        self.host = &.{};
    }

    /// The job for the workers.
    fn prepare_part(self: *Slot, on_done: *const fn (*search.Job) void, navigator: *Navigator) void {
        const job = self.call.job;
        self.navigator = navigator;
        const count = job.segments.len;
        @memcpy(self.segments[0..count], job.segments);
        self.part = .{
            .queries = job.queries,
            .query_bytes = job.query_bytes,
            .dtype = job.dtype,
            .count = self.begin + self.count,
            .segments = self.segments[0..count],
            .delta = job.delta,
            .deadline_us = job.deadline_us,
            .answers = job.answers,
            .on_done = on_done,
            .whole = job,
            .next = self.begin,
        };
    }

    /// Prepares the queries and starts all that the device does with them.
    fn navigate(self: *Slot, navigator: *Navigator, diagnostic: *driver.Diagnostic) (driver.Error || error{OutOfMemory})!void {
        const card = &navigator.card;
        const end = self.place_arrays();
        try self.reserve(card, end, diagnostic);
        try self.prepare_queries(navigator);
        const stream = self.stream;
        try card.record(self.started.?, stream, diagnostic);
        try card.upload(self.device, 0, self.host[0..self.results_at], stream, diagnostic);
        for (0..self.part.segments.len) |i| try self.launch(navigator, i, diagnostic);
        const results: driver.Buffer = .{ .address = self.device.address + self.results_at, .bytes = end - self.results_at };
        try card.download(self.host[self.results_at..end], results, stream, diagnostic);
        try card.record(self.finished.?, stream, diagnostic);
    }

    /// Returns the end of all arrays.
    fn place_arrays(self: *Slot) usize {
        const count: usize = self.count;
        var at: usize = 0;
        const plan = self.call.plan[0..self.part.segments.len];
        for (plan, self.arrays[0..plan.len]) |*one, *arrays| {
            const own = one.index() orelse continue;
            arrays.queries = Arrays.place(&at, count * @sizeOf(layout.Query));
            arrays.planes = Arrays.place(&at, count * layout.plane_words_of(own.dim) * 4);
            arrays.terms = Arrays.place(&at, count * own.center_count * 4);
        }
        self.results_at = at;
        for (plan, self.arrays[0..plan.len]) |*one, *arrays| {
            if (one.resident == null) continue;
            arrays.candidates = Arrays.place(&at, count * one.list_size * @sizeOf(quant.Candidate));
            arrays.counters = Arrays.place(&at, count * @sizeOf(layout.Counters));
        }
        return at;
    }

    fn reserve(self: *Slot, card: *const driver.Card, bytes: usize, diagnostic: *driver.Diagnostic) driver.Error!void {
        if (bytes <= self.host.len) return;
        self.free_memory(card);
        const size = std.math.ceilPowerOfTwoAssert(usize, @max(bytes, 1 << 20));
        self.device = try card.alloc(size, diagnostic);
        errdefer card.free(&self.device);
        self.host = try card.alloc_host(size, diagnostic);
    }

    fn array(self: *const Slot, comptime T: type, at: usize, count: usize) []T {
        return @as([*]T, @ptrCast(@alignCast(self.host.ptr + at)))[0..count];
    }

    fn launch(self: *Slot, navigator: *const Navigator, number: usize, diagnostic: *driver.Diagnostic) driver.Error!void {
        const one = &self.call.plan[number];
        const own = one.index() orelse return;
        const arrays = &self.arrays[number];
        const address = self.device.address;
        const is_stopped = one.stop.followed < layout.none;
        const batch: layout.Batch = .{
            .queries = address + arrays.queries,
            .planes = address + arrays.planes,
            .terms = address + arrays.terms,
            .candidates = address + arrays.candidates,
            .counters = address + arrays.counters,
            .count = self.count,
            .list_size = one.list_size,
            .stop_k = if (is_stopped) one.stop.k else 1,
            .stop_followed = one.stop.followed,
            .stop_share = one.stop.share,
            .visited_slots = layout.visited_slots_of(one.list_size),
        };
        try navigator.card.launch_batch(navigator.function, own.*, batch, self.stream, diagnostic);
    }

    fn wait(self: *Slot, navigator: *Navigator, diagnostic: *driver.Diagnostic) driver.Error!void {
        const card = &navigator.card;
        try card.wait(self.finished.?, diagnostic);
        const busy_us = try card.elapsed_us(self.started.?, self.finished.?, diagnostic);
        navigator.mutex.lock();
        navigator.counts.busy_us += @intFromFloat(@max(0, busy_us));
        navigator.mutex.unlock();
        for (self.segments[0..self.part.segments.len], self.call.plan[0..self.part.segments.len], 0..) |*segment, *one, i| {
            if (one.resident == null) continue;
            const arrays = &self.arrays[i];
            self.navigated[i] = .{
                .first = self.begin,
                .list_size = one.list_size,
                .candidates = self.array(quant.Candidate, arrays.candidates, @as(usize, self.count) * one.list_size),
                .counters = self.array(search.Navigated.Counters, arrays.counters, self.count),
                .refused = &navigator.refused,
            };
            segment.navigated = &self.navigated[i];
        }
    }

    // ---- queries ----

    /// On several threads where there are many: a query takes some microseconds, and the device less.
    fn prepare_queries(self: *Slot, navigator: *const Navigator) error{OutOfMemory}!void {
        const wanted = std.math.clamp(self.count / prepared_least, 1, @min(navigator.options.threads, helpers_max));
        const each = std.math.divCeil(u32, self.count, wanted) catch unreachable;
        var failed: std.atomic.Value(bool) = .init(false);
        var threads: [helpers_max]std.Thread = undefined;
        var started: usize = 0;
        var first = each;
        while (first < self.count) : (first += each) {
            const end = @min(self.count, first + each);
            threads[started] = std.Thread.spawn(.{ .stack_size = 256 << 10 }, prepare_some, .{ self, navigator.allocator, first, end, &failed }) catch {
                self.prepare_some(navigator.allocator, first, end, &failed);
                continue;
            };
            started += 1;
        }
        self.prepare_some(navigator.allocator, 0, @min(each, self.count), &failed);
        for (threads[0..started]) |thread| thread.join();
        if (failed.load(.acquire)) return error.OutOfMemory;
    }

    const helpers_max = 16;

    fn prepare_some(self: *Slot, allocator: std.mem.Allocator, first: u32, end: u32, failed: *std.atomic.Value(bool)) void {
        for (0..self.part.segments.len) |i| {
            self.prepare_for(i, allocator, first, end) catch failed.store(true, .release);
        }
    }

    fn prepare_for(self: *Slot, number: usize, allocator: std.mem.Allocator, first: u32, end: u32) error{OutOfMemory}!void {
        const one = &self.call.plan[number];
        const resident = one.resident orelse return;
        const reader = resident.shared.reader;
        const own = &resident.index;
        const job = self.call.job;
        const words = layout.plane_words_of(own.dim);
        const arrays = &self.arrays[number];
        const queries = self.array(layout.Query, arrays.queries, self.count);
        const planes = self.array(u32, arrays.planes, self.count * words);
        const terms = self.array(f32, arrays.terms, @as(usize, self.count) * own.center_count);
        var query = try quant.Query.init(allocator, reader.codes.params);
        defer query.deinit(allocator);
        query.bind(&reader.codes);
        const row = try allocator.alloc(f32, reader.header.dim_in);
        defer allocator.free(row);
        const rotated = try allocator.alloc(f32, reader.header.dim_code);
        defer allocator.free(rotated);
        for (first..end) |i| {
            const at: usize = @intCast(self.begin + i);
            search.prepare(reader, job.dtype, job.queries[at * job.query_bytes ..][0..job.query_bytes], row, rotated, &query);
            gpu.prepare.write(&query, layout.none, &queries[i], planes[i * words ..][0..words], terms[i * own.center_count ..][0..own.center_count]);
        }
    }
};

comptime {
    assert(@sizeOf(search.Navigated.Counters) == @sizeOf(layout.Counters));
    for (std.meta.fieldNames(layout.Counters)) |name| assert(@offsetOf(layout.Counters, name) == @offsetOf(search.Navigated.Counters, name));
    assert(layout.none == std.math.maxInt(u32)); // as search.Stop.never has it
}
