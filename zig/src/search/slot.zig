//! One query under way: its job, its outcome so far and what it waits for. A worker has many (engine.zig); a caller that
//! answers its own query has one.
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const segments_file = @import("segments.zig");
const cost_file = @import("cost.zig");
const job_file = @import("job.zig");
const query_file = @import("query.zig");
const File = @import("shared.zig").File;
const parameters = @import("parameters.zig");
const Shared = @import("shared.zig").Shared;
const SegmentSearch = job_file.SegmentSearch;
const Job = job_file.Job;
const Outcome = job_file.Outcome;
const Fate = query_file.Fate;
const assert = std.debug.assert;

/// Reads that a query may repeat before it gives up.
const retries_max = 8;

/// The result of a read.
pub const Arrived = union(enum) {
    view: layout.page.View,
    vectors: []const u8,
    /// Read again it may be whole; else its queries end so.
    damaged: Outcome,
    /// Its checksum is right: reading it again changes nothing.
    broken,
};

pub const Slot = struct {
    job: *Job = undefined,
    query: u64 = 0,
    begin_us: u64 = 0,
    /// Pages that its subsearches wait for.
    in_flight: u32 = 0,
    /// Rounds of reads of all subsearches together.
    rounds: u32 = 0,
    outcome: Outcome = .ok,
    /// The page at fault, and its file.
    page: i64 = -1,
    file: File = .pages,
    /// In a pool's `starved` list, waiting for page buffers.
    starved: bool = false,
    /// When the pages of this round were asked for; 0 once one of them has arrived.
    asked_us: u64 = 0,
    /// Pages read again because they came damaged or not at all.
    retries: u32 = 0,
    /// In the worker's `ready` list.
    ready: bool = false,
    /// All subsearches have ended, only reads that may hold an answer, or that are no longer needed, are in flight.
    ended: bool = false,

    pub fn start(self: *Slot, subsearches: segments_file.SegmentSearches) void {
        for (self.job.segments, 0..) |*segment, i| {
            const subsearch = subsearches.at(i);
            subsearch.due = true;
            subsearch.ended = false;
            subsearch.search.start(self.job.request_of(segment, self.query));
        }
    }

    pub fn check_time(self: *Slot, now_us: u64) void {
        if (self.job.is_closing()) {
            self.outcome = .closed;
        } else if (self.job.is_canceled()) {
            self.outcome = .canceled;
        } else if (self.job.deadline_us > 0 and now_us >= self.job.deadline_us) {
            self.outcome = .timeout;
        }
    }

    /// Hands a page that a subsearch wants to it from the page cache; false where the page is not in it.
    pub fn use_cached(self: *Slot, subsearch: *SegmentSearch, file: File, page: u32) bool {
        const shared = subsearch.search.shared;
        const cache = shared.page_cache_of(@intFromEnum(file)) orelse return false;
        const held = cache.find(page) orelse return false;
        defer cache.release(held);
        const arrived: Arrived = switch (file) {
            .pages => .{ .view = .of(held.bytes, shared.reader.page_geometry(), shared.reader.expected_page(page)) },
            .vectors => .{ .vectors = held.bytes },
        };
        subsearch.search.round.advance();
        subsearch.search.cost.cache_hits += 1;
        if (subsearch.search.state == .walk) subsearch.search.state.walk.take_from_cache(page);
        // Pages are held where links are on disk, and there no page is cached.
        const fate = self.use(subsearch, file, page, arrived, 0);
        assert(fate.? == .free);
        subsearch.due = true;
        return true;
    }

    /// Hands a page to the query and returns the fate of its buffer; null asks for another read. A page that is still
    /// damaged after all retries ends the query.
    pub fn use(self: *Slot, subsearch: *SegmentSearch, file: File, page: u32, arrived: Arrived, buffer: u32) ?Fate {
        if (self.outcome != .ok) return .free;
        self.outcome = switch (arrived) {
            .view => |*view| if (subsearch.search.on_page(page, view, buffer)) |fate| return fate else |_| .corrupt,
            .vectors => |bytes| {
                subsearch.search.on_vectors(page, bytes);
                return .free;
            },
            .damaged => |outcome| blk: {
                if (self.retries == retries_max) break :blk outcome;
                self.retries += 1;
                return null;
            },
            .broken => .corrupt,
        };
        self.page = page;
        self.file = file;
        return .free;
    }

    /// A walk goes on with whatever arrives: there the longest chain of reads in a segment counts.
    fn rounds_of(self: *const Slot, subsearches: segments_file.SegmentSearches) u32 {
        var longest: u32 = 0;
        var walks = false;
        for (0..subsearches.count()) |i| {
            const search = &subsearches.at(i).search;
            walks = walks or search.shared.plan == .walk;
            longest = @max(longest, search.cost.rounds);
        }
        return if (walks) longest else self.rounds;
    }

    /// Into the arrays of the job. `room` holds the hits of a delta.
    pub fn write_answer(self: *const Slot, subsearches: segments_file.SegmentSearches, room: []job_file.Delta.Hit) void {
        const answers = self.job.answers;
        const q: usize = @intCast(self.query);
        const k = self.job.k();
        var merged: segments_file.Merged = .of(subsearches);
        if (self.job.delta) |delta| if (self.outcome == .ok) merged.add(delta, self.query, room[0..k]);
        var count: u32 = 0;
        while (count < k and self.outcome == .ok) : (count += 1) {
            const hit = merged.next() orelse break;
            if (answers.vertices) |vertices| vertices[q * k + count] = hit.vertex;
            if (answers.distances) |distances| distances[q * k + count] = hit.distance;
        }
        if (answers.vertices) |vertices| @memset(vertices[q * k + count .. (q + 1) * k], -1);
        if (answers.distances) |distances| @memset(distances[q * k + count .. (q + 1) * k], std.math.inf(f32));
        if (answers.counts) |counts| counts[q] = count;
        if (answers.outcomes) |outcomes| outcomes[q] = self.outcome;
        if (answers.error_pages) |pages| pages[q] = self.page;
        if (answers.error_files) |files| files[q] = @intFromEnum(self.file);
        var cost = subsearches.at(0).search.cost;
        for (1..subsearches.count()) |i| cost.add(&subsearches.at(i).search.cost);
        if (subsearches.count() > 1) cost.rounds = self.rounds_of(subsearches);
        cost.latency_us = base.nowMicros() - self.begin_us;
        cost_file.write(&answers.costs, q, &cost);
    }
};

// ---- callers that answer their own queries ----
//
// A query that reads nothing needs no device, and so no worker: where all pages of its segments are in memory, the thread that
// calls answers it. To hand it to a worker and to be woken takes as long as the query itself.

/// Places for callers that answer at the same time; more go to the workers.
const Places = u64;

pub const Direct = struct {
    /// A bit for each free place.
    free: std.atomic.Value(Places),
    /// Of a segment's subsearches the one of the first place.
    first_place: usize,
    /// Of each place, room for the hits of a delta.
    hits: []job_file.Delta.Hit,

    pub fn count_of(threads: u32) u32 {
        return @min(threads, @bitSizeOf(Places));
    }

    pub fn init(allocator: std.mem.Allocator, threads: u32, first_place: usize) error{OutOfMemory}!Direct {
        const places = count_of(threads);
        return .{
            .free = .init(std.math.boolMask(Places, true) >> @intCast(@bitSizeOf(Places) - places)),
            .first_place = first_place,
            .hits = try base.alloc_untouched(allocator, job_file.Delta.Hit, places * parameters.k_max),
        };
    }

    pub fn deinit(self: *Direct, allocator: std.mem.Allocator) void {
        base.free_untouched(allocator, self.hits);
    }

    /// Whether the job is of one query that no segment reads anything for.
    pub fn may_answer(job: *const Job) bool {
        if (job.count != 1) return false;
        for (job.segments) |*one| {
            const shared = one.segment.shared;
            if (!is_complete(shared, .pages)) return false;
            if (one.parameters.exact and shared.reader.vectors != null and !is_complete(shared, .vectors)) return false;
        }
        return true;
    }

    fn is_complete(shared: *const Shared, file: File) bool {
        const cache = shared.page_cache_of(@intFromEnum(file)) orelse return false;
        return cache.is_complete();
    }

    /// Answers the job; false where the workers have to.
    pub fn answer(self: *Direct, job: *Job) bool {
        const place = self.take() orelse return false;
        defer _ = self.free.fetchOr(@as(Places, 1) << @intCast(place), .release);
        const subsearches: segments_file.SegmentSearches = .{ .segments = job.segments, .place = self.first_place + place };
        var slot: Slot = .{ .job = job, .begin_us = base.nowMicros() };
        subsearches.prepare();
        slot.start(subsearches);
        const is_answered = run(&slot, subsearches);
        if (is_answered) {
            slot.write_answer(subsearches, self.hits[place * parameters.k_max ..][0..parameters.k_max]);
            job.remaining.store(1, .monotonic);
            _ = job.finish_query(slot.outcome, slot.page, slot.file);
        }
        for (0..subsearches.count()) |i| subsearches.at(i).search.end();
        subsearches.give_back();
        return is_answered;
    }

    fn take(self: *Direct) ?usize {
        var free = self.free.load(.monotonic);
        while (free != 0) {
            free = self.free.cmpxchgWeak(free, free & (free - 1), .acquire, .monotonic) orelse return @ctz(free);
        }
        return null;
    }

    /// False where a page is not in memory.
    fn run(slot: *Slot, subsearches: segments_file.SegmentSearches) bool {
        while (true) {
            slot.check_time(base.nowMicros());
            if (slot.outcome != .ok) break;
            const want = segments_file.step(subsearches, slot.job.k()) catch {
                slot.outcome = .corrupt;
                break;
            };
            if (want == .done) break;
            for (0..subsearches.count()) |i| {
                const subsearch = subsearches.at(i);
                const round = &subsearch.search.round;
                while (round.upcoming()) |page| if (!slot.use_cached(subsearch, subsearch.search.file(), page)) return false;
            }
            if (subsearches.count() == 1) subsearches.at(0).search.end_round_without_reads();
        }
        return true;
    }
};
