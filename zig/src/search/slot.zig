//! One query under way: its job, its outcome so far and what it waits for. A worker has many (worker.zig); a caller that
//! answers its own query has one (direct.zig).
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const company = @import("company.zig");
const cost_file = @import("cost.zig");
const job_file = @import("job.zig");
const Job = job_file.Job;
const Outcome = job_file.Outcome;
const Leg = @import("part.zig").Leg;
const search_state = @import("search_state.zig");
const Fate = search_state.Fate;
const File = search_state.File;
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
    /// Pages that its legs wait for.
    in_flight: u32 = 0,
    /// Rounds of reads of all legs together.
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
    /// All legs have ended, only reads that may hold an answer, or that nobody needs, are on their way.
    ended: bool = false,

    pub fn start(self: *Slot, legs: company.Legs) void {
        for (self.job.parts, 0..) |*part, i| {
            const leg = legs.at(i);
            leg.due = true;
            leg.ended = false;
            leg.search.start(self.job.request_of(part, self.query));
        }
    }

    pub fn check_time(self: *Slot, now_us: u64) void {
        if (self.job.is_closing()) {
            self.outcome = .closed;
        } else if (self.job.canceled.load(.monotonic)) {
            self.outcome = .canceled;
        } else if (self.job.deadline_us > 0 and now_us >= self.job.deadline_us) {
            self.outcome = .timeout;
        }
    }

    /// Hands a page that a leg wants to it from the page cache; false where the page is not in it.
    pub fn use_cached(self: *Slot, leg: *Leg, file: File, page: u32) bool {
        const shared = leg.search.shared;
        const cache = shared.page_cache_of(@intFromEnum(file)) orelse return false;
        const held = cache.find(page) orelse return false;
        defer cache.release(held);
        const arrived: Arrived = switch (file) {
            .pages => .{ .view = .of(held.bytes, shared.reader.page_geometry(), shared.reader.expected_page(page)) },
            .vectors => .{ .vectors = held.bytes },
        };
        leg.search.round.advance();
        leg.search.cost.cache_hits += 1;
        // Nothing is held where links are in memory, so there is no buffer to tell apart.
        const fate = self.use(leg, file, page, arrived, 0);
        assert(fate.? == .free);
        leg.due = true;
        return true;
    }

    /// Hands a page to the query and returns the fate of its buffer; null asks for another read. A page that is still
    /// damaged after all retries ends the query.
    pub fn use(self: *Slot, leg: *Leg, file: File, page: u32, arrived: Arrived, buffer: u32) ?Fate {
        if (self.outcome != .ok) return .free;
        self.outcome = switch (arrived) {
            .view => |*view| if (leg.search.on_page(page, view, buffer)) |fate| return fate else |_| .corrupt,
            .vectors => |bytes| {
                leg.search.on_vectors(page, bytes);
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

    /// Into the arrays of the job. `room` holds the hits of a delta.
    pub fn write_answer(self: *const Slot, legs: company.Legs, room: []job_file.Delta.Hit) void {
        const answers = self.job.answers;
        const q: usize = @intCast(self.query);
        const k = self.job.k();
        var merged: company.Merged = .of(legs);
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
        var cost = legs.at(0).search.cost;
        for (1..legs.count()) |i| cost.add(&legs.at(i).search.cost);
        if (legs.count() > 1) cost.rounds = self.rounds;
        cost.latency_us = base.nowMicros() - self.begin_us;
        cost_file.write(&answers.costs, q, &cost);
    }
};
