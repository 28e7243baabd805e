//! Batches of queries on one GPU of this process.
//!
//! A call of many queries is cut into batches. A batch is prepared, uploaded, navigated and downloaded on one of two lanes; then
//! its candidate lists go to the workers of its index as a job of their own, which reads pages and finishes as ever, while the
//! other lane's batch is on the GPU:
//!
//!   free ──▶ navigating ──▶ ranking ──▶ free
//!        (GPU and copies)  (workers)
//!
//! One thread, `run`, moves both lanes. After any failure the workers answer the batch from the beginning. A lost device gets no
//! further batch.
const std = @import("std");
const base = @import("base");
const quant = @import("quant");
const search = @import("search");
const gpu = @import("gpu");
const kernel = @import("kernel.zig");
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

/// Calls of fewer queries stay on the CPU: copies and the latency of a launch take longer than the workers (docs/gpu.md).
pub const queries_least_default = 256;
/// So many queries keep every multiprocessor of the largest GPUs busy, one warp each.
const batch_max_default = 8192;
/// A call is cut into so many batches at least, of no fewer queries than the second number.
const batches_least = 4;
const batch_least = 1024;
/// Of page-locked memory and of device memory, for each lane.
const lane_bytes_max = 64 << 20;
/// Queries that one thread prepares at least.
const prepared_least = 256;

/// The workers that finish a call.
pub const Workers = struct {
    context: *anyopaque,
    submit_part: *const fn (context: *anyopaque, job: *search.Job) void,
};

const lane_count = 2;

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
    lanes: [lane_count]Lane = @splat(.{}),
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
        const module = try card.load_module(kernel.ptx, diagnostic);
        errdefer card.unload_module(module);
        self.* = .{
            .allocator = allocator,
            .card = card,
            .module = module,
            .function = try card.function(module, kernel.name, diagnostic),
            .options = options,
        };
        errdefer for (&self.lanes) |*lane| lane.deinit(&self.card);
        for (&self.lanes) |*lane| try lane.init(&self.card, diagnostic);
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
        for (&self.lanes) |*lane| lane.deinit(&self.card);
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

    /// Takes a call of at least so many queries; false where the workers alone are to have it.
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
        var each: u64 = 0;
        for (plan[0..job.segments.len]) |*one| each += one.bytes_each();
        const room: u64 = @max(1, lane_bytes_max / each);
        const pieces = if (job.count >= batches_least * batch_least) @max(batches_least, std.math.divCeil(u64, job.count, self.options.batch_max) catch unreachable) else std.math.divCeil(u64, job.count, self.options.batch_max) catch unreachable;
        return @intCast(@min(room, std.math.divCeil(u64, job.count, pieces) catch unreachable));
    }

    // ---- lanes ----

    fn run(self: *Navigator) void {
        var diagnostic: driver.Diagnostic = .{};
        const entered = self.card.enter(&diagnostic);
        defer if (entered) |_| self.card.leave() else |_| {};
        entered catch |err| self.note(err, &diagnostic);
        self.mutex.lock();
        defer self.mutex.unlock();
        while (true) {
            if (self.lane_in(.ranked)) |lane| {
                self.mutex.unlock();
                defer self.mutex.lock();
                finish(self.allocator, lane);
            } else if (self.first != null and self.lane_in(.free) != null) {
                const lane = self.lane_in(.free).?;
                self.take(lane);
                self.mutex.unlock();
                defer self.mutex.lock();
                self.begin(lane);
            } else if (self.lane_in(.navigating)) |lane| {
                self.mutex.unlock();
                defer self.mutex.lock();
                self.rank(lane);
            } else {
                if (self.closed and self.lane_in(.ranking) == null) return;
                self.condition.wait(&self.mutex);
            }
        }
    }

    /// Of the lanes in a state the one that began first.
    fn lane_in(self: *Navigator, wanted: Lane.State) ?*Lane {
        var found: ?*Lane = null;
        for (&self.lanes) |*lane| {
            if (lane.state != wanted) continue;
            if (found == null or lane.number < found.?.number) found = lane;
        }
        return found;
    }

    /// The next queries of the first call.
    fn take(self: *Navigator, lane: *Lane) void {
        const call = self.first.?;
        lane.call = call;
        lane.begin = call.next;
        lane.count = @intCast(@min(call.size, call.job.count - call.next));
        lane.number = self.counts.batches;
        self.counts.batches += 1;
        self.counts.queries += lane.count;
        call.next += lane.count;
        if (call.next < call.job.count) return;
        self.first = call.following;
        if (self.first == null) self.last = null;
    }

    fn begin(self: *Navigator, lane: *Lane) void {
        lane.prepare_part(on_ranked, self);
        if (lane.call.is_over()) return self.send(lane);
        if (self.is_off.load(.acquire)) return self.give_up(lane);
        var diagnostic: driver.Diagnostic = .{};
        lane.navigate(self, &diagnostic) catch |err| {
            self.note(err, &diagnostic);
            return self.give_up(lane);
        };
        self.set(lane, .navigating);
    }

    /// Waits for the device, and hands the lists to the workers.
    fn rank(self: *Navigator, lane: *Lane) void {
        var diagnostic: driver.Diagnostic = .{};
        lane.wait(self, &diagnostic) catch |err| {
            self.note(err, &diagnostic);
            return self.give_up(lane);
        };
        self.send(lane);
    }

    /// The workers navigate for the batch.
    fn give_up(self: *Navigator, lane: *Lane) void {
        for (lane.segments[0..lane.part.segments.len]) |*segment| segment.navigated = null;
        self.mutex.lock();
        self.counts.failed_queries += lane.count;
        self.mutex.unlock();
        self.send(lane);
    }

    /// Hands the batch to the workers, with the lists that it has.
    fn send(self: *Navigator, lane: *Lane) void {
        self.set(lane, .ranking);
        lane.call.workers.submit_part(lane.call.workers.context, &lane.part);
    }

    fn set(self: *Navigator, lane: *Lane, next: Lane.State) void {
        self.mutex.lock();
        defer self.mutex.unlock();
        lane.state = next;
    }

    /// By a worker.
    fn on_ranked(part: *search.Job) void {
        const lane: *Lane = @fieldParentPtr("part", part);
        const self = lane.navigator;
        self.mutex.lock();
        defer self.mutex.unlock();
        lane.state = .ranked;
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

/// A part of a call has ended, and with the last one the call.
fn finish(allocator: std.mem.Allocator, lane: *Lane) void {
    const call = lane.call;
    const job = call.job;
    lane.part.report_to_whole();
    lane.state = .free; // of this thread alone where nothing is ranked on it
    call.ended += lane.count;
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

    /// Bytes of a query in a lane, without padding of arrays.
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

/// The arrays of one segment in a lane, as offsets: those that are uploaded, then those that come back.
const Arrays = struct {
    queries: usize = 0,
    planes: usize = 0,
    terms: usize = 0,
    candidates: usize = 0,
    counters: usize = 0,

    const alignment = 64;

    fn place(at: *usize, bytes: usize) usize {
        const own = at.*;
        at.* = std.mem.alignForward(usize, own + bytes, alignment);
        return own;
    }
};

const Lane = struct {
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

    fn init(self: *Lane, card: *const driver.Card, diagnostic: *driver.Diagnostic) driver.Error!void {
        self.stream = try card.create_stream(diagnostic);
        self.started = try card.create_event(diagnostic);
        self.finished = try card.create_event(diagnostic);
    }

    fn deinit(self: *Lane, card: *const driver.Card) void {
        if (self.stream) |stream| card.destroy_stream(stream);
        if (self.started) |event| card.destroy_event(event);
        if (self.finished) |event| card.destroy_event(event);
        self.free_memory(card);
        self.* = .{};
    }

    fn free_memory(self: *Lane, card: *const driver.Card) void {
        card.free(&self.device);
        if (self.host.len > 0) card.free_host(self.host);
        self.host = &.{};
    }

    /// The job for the workers.
    fn prepare_part(self: *Lane, on_done: *const fn (*search.Job) void, navigator: *Navigator) void {
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
    fn navigate(self: *Lane, navigator: *Navigator, diagnostic: *driver.Diagnostic) (driver.Error || error{OutOfMemory})!void {
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
    fn place_arrays(self: *Lane) usize {
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

    fn reserve(self: *Lane, card: *const driver.Card, bytes: usize, diagnostic: *driver.Diagnostic) driver.Error!void {
        if (bytes <= self.host.len) return;
        self.free_memory(card);
        const size = std.math.ceilPowerOfTwoAssert(usize, @max(bytes, 1 << 20));
        self.device = try card.alloc(size, diagnostic);
        errdefer card.free(&self.device);
        self.host = try card.alloc_host(size, diagnostic);
    }

    fn array(self: *const Lane, comptime T: type, at: usize, count: usize) []T {
        return @as([*]T, @ptrCast(@alignCast(self.host.ptr + at)))[0..count];
    }

    fn launch(self: *Lane, navigator: *const Navigator, number: usize, diagnostic: *driver.Diagnostic) driver.Error!void {
        const one = &self.call.plan[number];
        var own = (one.index() orelse return).*;
        const arrays = &self.arrays[number];
        const address = self.device.address;
        const is_stopped = one.stop.followed < layout.none;
        var batch: layout.Batch = .{
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
        const warps = batch.block_warps();
        var arguments = [_]?*anyopaque{ &own, &batch };
        try navigator.card.launch(navigator.function, .{
            .blocks = std.math.divCeil(u32, self.count, warps) catch unreachable,
            .threads = layout.lanes * warps,
            .shared_bytes = warps * batch.warp_bytes(),
        }, self.stream, &arguments, diagnostic);
    }

    fn wait(self: *Lane, navigator: *Navigator, diagnostic: *driver.Diagnostic) driver.Error!void {
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
    fn prepare_queries(self: *Lane, navigator: *const Navigator) error{OutOfMemory}!void {
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

    fn prepare_some(self: *Lane, allocator: std.mem.Allocator, first: u32, end: u32, failed: *std.atomic.Value(bool)) void {
        for (0..self.part.segments.len) |i| {
            self.prepare_for(i, allocator, first, end) catch failed.store(true, .release);
        }
    }

    fn prepare_for(self: *Lane, number: usize, allocator: std.mem.Allocator, first: u32, end: u32) error{OutOfMemory}!void {
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
    assert(layout.none == std.math.maxInt(u32)); // search.Stop.never follows so many
}
